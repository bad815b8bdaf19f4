"""Fill policies decide what memory holds before it is written.

A GPU hands out whatever the last owner left. ``zeros`` hides every bug of that kind, so a harness needs the
other two: ``nan`` makes an unwritten float loud, ``garbage`` makes an unwritten integer land anywhere.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

FillMode = Literal["zeros", "nan", "garbage"]

_BANK_WORDS = 2**17 - 1
"""Words of noise kept, 1 MiB: a prime, so that no two rows of a buffer hold the same noise for the width they have."""


class FillPolicy:
    """Paints fresh and released memory; seeded, so a run with garbage is as repeatable as one without.

    Garbage is read in turn from a bank of noise, of which each device has a copy: painting on a GPU waits for nothing,
    and paints what it would on a CPU.
    """

    def __init__(self, mode: FillMode, seed: int = 0) -> None:
        self.mode = mode
        self._seed = seed ^ 0x5EED
        self._banks: dict[torch.device, Tensor] = {}
        self._cursor = 0

    @property
    def poisons(self) -> bool:
        """True if released memory changes content, which it does under any policy but ``zeros``."""
        return self.mode != "zeros"

    def paint(self, tensor: Tensor) -> None:
        """Overwrite ``tensor`` (any layout) as memory that was never written."""
        if self.mode == "zeros":
            tensor.zero_()
        elif self.mode == "nan" and tensor.is_floating_point():
            tensor.fill_(float("nan"))
        else:
            tensor.copy_(self._garbage(tensor))

    def _garbage(self, like: Tensor) -> Tensor:
        raw = self._noise(-(-like.nbytes // 8), like.device).view(torch.uint8)[: like.nbytes]
        if like.dtype is torch.bool:
            return (raw & 1).view(like.shape)
        return raw.view(like.dtype).view(like.shape)

    def _noise(self, words: int, device: torch.device) -> Tensor:
        """The next ``words`` of the bank: int64 [words]."""
        bank, start = self._bank(device), self._cursor
        self._cursor = (start + words) % _BANK_WORDS
        if start + words > _BANK_WORDS:
            bank = bank.repeat(-(-(start + words) // _BANK_WORDS))
        return bank[start : start + words]

    def _bank(self, device: torch.device) -> Tensor:
        bank = self._banks.get(device)
        if bank is None:
            drawn = torch.randint(
                -(2**63), 2**63 - 1, (_BANK_WORDS,), generator=torch.Generator().manual_seed(self._seed)
            )
            bank = self._banks[device] = drawn.to(device)
        return bank


class Scratch:
    """Temporaries as a device's caching allocator gives them: ``empty`` holds what the policy says."""

    def __init__(self, fill: FillPolicy, device: torch.device) -> None:
        self._fill = fill
        self.device = device

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised memory: like ``torch.empty``, but with the fill policy's content."""
        tensor = torch.empty(shape, dtype=dtype, device=self.device)
        self._fill.paint(tensor)
        return tensor

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory set to zero."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

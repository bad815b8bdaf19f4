"""Fill policies decide what memory holds before it is written.

A GPU hands out whatever the last owner left. ``zeros`` hides every bug of that kind, so a harness needs the
other two: ``nan`` makes an unwritten float loud, ``garbage`` makes an unwritten integer land anywhere.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

FillMode = Literal["zeros", "nan", "garbage"]


class FillPolicy:
    """Paints fresh and released memory; seeded, so a run with garbage is as repeatable as one without."""

    def __init__(self, mode: FillMode, seed: int = 0) -> None:
        self.mode = mode
        self._generator = torch.Generator().manual_seed(seed ^ 0x5EED)

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
        if like.dtype is torch.bool:
            return torch.randint(0, 2, like.shape, generator=self._generator).to(torch.bool)
        raw = torch.randint(-(2**63), 2**63 - 1, (-(-like.nbytes // 8),), generator=self._generator)
        return raw.view(torch.uint8)[: like.nbytes].view(like.dtype).view(like.shape)


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

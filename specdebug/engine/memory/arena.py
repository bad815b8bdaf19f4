"""Static memory that behaves like a GPU's: what it holds before it is written, and guard regions between buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

FillMode = Literal["zeros", "nan", "garbage"]

_BANK_WORDS = 2**17 - 1
"""Words of noise kept, 1 MiB: a prime, so that no two rows of a buffer hold the same noise for the width they have."""


class FillPolicy:
    """Paints fresh and released memory, as repeatably as it is seeded. ``zeros`` would be kind; ``nan`` makes an
    unwritten float loud, ``garbage`` an unwritten integer land anywhere. Garbage is read from a bank of noise of each
    device's."""

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
            raw = self._noise(-(-tensor.nbytes // 8), tensor.device).view(torch.uint8)[: tensor.nbytes]
            content = raw & 1 if tensor.dtype is torch.bool else raw.view(tensor.dtype)
            tensor.copy_(content.view(tensor.shape))

    def _noise(self, words: int, device: torch.device) -> Tensor:
        """The next ``words`` of the device's bank: int64 [words]."""
        if device not in self._banks:
            generator = torch.Generator().manual_seed(self._seed)
            self._banks[device] = torch.randint(-(2**63), 2**63 - 1, (_BANK_WORDS,), generator=generator).to(device)
        bank, start = self._banks[device], self._cursor
        self._cursor = (start + words) % _BANK_WORDS
        if start + words > _BANK_WORDS:
            bank = bank.repeat(-(-(start + words) // _BANK_WORDS))
        return bank[start : start + words]


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

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """As of a ``Workspace``: fresh memory of exactly the asked shape."""
        return self.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)


_ALIGN = 64
_GUARD_BYTES = 256
_GUARD_BYTE = 0xA5
_SLACK_BYTES = 1 << 20


@dataclass(frozen=True)
class GuardViolation:
    """A guard region that lost its pattern: ``buffer`` was written past its end, towards ``victim``; ``first_byte`` to
    just before ``overran`` bytes behind it, the guard's size at most. ``damaged`` counts the bytes that changed.
    ``arena``, in bytes: its ``size``, its ``buffers`` in order (name, start, end, those of a row), and the damage, from
    and to where an access ``reached``; empty of a row of slots."""

    buffer: str
    victim: str
    first_byte: int
    overran: int
    damaged: int
    arena: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, buffer: str, victim: str, bad: Tensor, size: int = 1) -> GuardViolation:
        """``bad``: int64 [n], n > 0, the damaged elements of a guard, ascending; each has ``size`` bytes."""
        return cls(buffer, victim, int(bad[0]) * size, (int(bad[-1]) + 1) * size, bad.numel() * size)

    def __str__(self) -> str:
        return f"{self.buffer} overran by at least {self.overran} bytes into {self.victim}"


@dataclass(frozen=True)
class _Buffer:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    end: int


class ArenaLayout:
    """Collects buffers, then :meth:`build` makes the one allocation that holds them in that order."""

    def __init__(self, *, guards: bool) -> None:
        self.guards = guards
        self.buffers: list[_Buffer] = []
        self.nbytes = 0

    def add(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Reserve a contiguous buffer. Raises ValueError on a repeated name."""
        if name in {buffer.name for buffer in self.buffers}:
            raise ValueError(f"arena buffer {name!r} declared twice")
        end = self.nbytes + math.prod(shape) * dtype.itemsize
        self.buffers.append(_Buffer(name, shape, dtype, self.nbytes, end))
        self.nbytes = -(-(end + (_GUARD_BYTES if self.guards else 0)) // _ALIGN) * _ALIGN

    def build(self, fill: FillPolicy, device: torch.device) -> Arena:
        """Allocate, paint every buffer with ``fill`` and arm the guards."""
        return Arena(self, fill, device)


class Arena:
    """The allocation. ``arena[name]`` is a buffer view; nothing reached through it lies outside the arena."""

    def __init__(self, layout: ArenaLayout, fill: FillPolicy, device: torch.device) -> None:
        # Nothing stops a GPU's kernel at the end of an allocation, and any other tensor may lie behind it: a long
        # overrun must not reach the rest of the process, these books included. On a CPU leaving it is an error.
        slack = _SLACK_BYTES if layout.guards and device.type == "cuda" else 0
        self._bytes = torch.empty(max(layout.nbytes, _ALIGN) + slack, dtype=torch.uint8, device=device)
        self._buffers, self._size = layout.buffers, layout.nbytes
        self._views: dict[str, Tensor] = {}
        for buffer in layout.buffers:
            view = self._bytes[buffer.start : buffer.end].view(buffer.dtype).view(buffer.shape)
            fill.paint(view)
            self._views[buffer.name] = view
        self._guards: list[tuple[str, str, int, int]] = []
        if layout.guards:
            victims = [*((buffer.name, buffer.start) for buffer in layout.buffers[1:]), ("end of arena", layout.nbytes)]
            self._guards = [
                (buffer.name, victim, buffer.end, stop)
                for buffer, (victim, stop) in zip(layout.buffers, victims, strict=True)
            ]
            index = [torch.arange(start, stop) for _, _, start, stop in self._guards]
            self._guard_index = torch.cat(index).to(device)
            self._bytes.index_fill_(0, self._guard_index, _GUARD_BYTE)
        # A GPU's memory cannot be read once a kernel has failed: what a look from the device sees goes to the host's.
        self._watched = bool(self._guards) and device.type == "cuda"
        if self._watched:
            self._starts = torch.tensor([start for _, _, start, _ in self._guards], device=device)
            self._stops = torch.tensor([stop for _, _, _, stop in self._guards], device=device)
            self._longest = max(stop - start for _, _, start, stop in self._guards)
            self._seen = torch.zeros((len(self._guards), 3), dtype=torch.int64, pin_memory=True)

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """As of a ``Workspace``: the buffer of that name, the same at every replay."""
        return self._views[name]

    def watch_guards(self) -> None:
        """On a GPU, look at the guards when the device gets here; see :meth:`damage_seen`. Waits for nothing."""
        if self._watched:
            from specdebug.engine.kernels.triton.guards import look_at_guards

            look_at_guards(self._bytes, self._starts, self._stops, _GUARD_BYTE, self._longest, self._seen)

    def damage_seen(self) -> list[GuardViolation]:
        """Damage that :meth:`watch_guards` saw since the last call, as far as the device has got; read from the host's
        memory, so also when the device is lost."""
        if not self._watched:
            return []
        found = [
            self._placed(GuardViolation(name, victim, first, past, count), start)
            for (name, victim, start, _), (first, past, count) in zip(self._guards, self._seen.tolist(), strict=True)
            if count
        ]
        self._seen.zero_()
        return found

    def _placed(self, found: GuardViolation, start: int) -> GuardViolation:
        """What was found in the guard that starts at a byte, with the arena around it."""
        rows = [math.prod(each.shape[1:]) * each.dtype.itemsize for each in self._buffers]
        buffers = [[one.name, one.start, one.end, row] for one, row in zip(self._buffers, rows, strict=True)]
        reached = [start + found.first_byte, start + found.overran]
        return replace(found, arena={"buffers": buffers, "size": self._size, "reached": reached})

    def check_guards(self) -> list[GuardViolation]:
        """Damaged guard regions, in layout order; each is re-armed, so damage is reported once."""
        if self._watched:
            self.watch_guards()
            torch.cuda.current_stream(self._bytes.device).synchronize()
            found = self.damage_seen()
            if found:
                self._bytes.index_fill_(0, self._guard_index, _GUARD_BYTE)
            return found
        if not self._guards or bool((self._bytes[self._guard_index] == _GUARD_BYTE).all()):
            return []
        found = []
        for name, victim, start, stop in self._guards:
            region = self._bytes[start:stop]
            bad = (region != _GUARD_BYTE).nonzero().flatten()
            if bad.numel():
                found.append(self._placed(GuardViolation.of(name, victim, bad), start))
                region.fill_(_GUARD_BYTE)
        return found

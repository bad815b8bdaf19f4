"""Rows of slot ids: cell ``[row, p]`` is the KV slot of position ``p`` of the request that owns the row.

Row 0 belongs to no request and holds zeros, so that padded batch rows resolve to the padding slot.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specdebug.engine.kernels.pointer import raw_block
from specdebug.engine.memory.arena import FillPolicy, GuardViolation

PADDING_ROW = 0
_GUARD_COLUMNS = 16
_GUARD_CELL = -0x5AFE

Cells = tuple[int, int, int]
"""A row, the first of its cells, and how many."""


class ReqToToken:
    """``table`` is int32 [rows + 1, width], a view of ``cells``, whose rows may end in guard columns."""

    def __init__(
        self, rows: int, width: int, *, fill: FillPolicy, guards: bool, device: torch.device | None = None
    ) -> None:
        self.width = width
        guard = _GUARD_COLUMNS if guards else 0
        self.cells = torch.empty((rows + 1, width + guard), dtype=torch.int32, device=device)
        fill.paint(self.cells)
        self.cells[PADDING_ROW] = 0
        self._guard = self.cells[:, width:]
        self._guard.fill_(_GUARD_CELL)
        self.table = self.cells[:, :width]
        self._free_rows = list(range(rows, 0, -1))
        self._rows = rows

    @property
    def num_free_rows(self) -> int:
        """Rows that no request owns; the padding row is not among them."""
        return len(self._free_rows)

    @property
    def rows(self) -> range:
        """The rows that requests can have."""
        return range(1, self._rows + 1)

    @property
    def free_rows(self) -> tuple[int, ...]:
        """Rows that no request owns; for accounting."""
        return tuple(self._free_rows)

    def alloc_row(self) -> int | None:
        """A free row, the lowest number first; None when all are taken."""
        return self._free_rows.pop() if self._free_rows else None

    def free_row(self, row: int) -> None:
        """Give a row back. Raises ValueError for the padding row or a row already free."""
        if not 1 <= row <= self._rows or row in self._free_rows:
            raise ValueError(f"row {row} is not in use")
        self._free_rows.append(row)
        self._free_rows.sort(reverse=True)

    def write(self, row: int, start: int, slots: Tensor) -> None:
        """Store slot ids in cells [start, start + len) of ``row``, by flat offset as the kernel does, and go on."""
        offset = row * self.cells.stride(0) + start
        cells = raw_block(self.table, offset, slots.numel(), "req_to_token.write")
        if cells.is_cuda and not slots.is_cuda:
            slots = slots.to(torch.int32).pin_memory()
        cells.copy_(slots, non_blocking=True)

    def write_rows(self, places: Sequence[Cells], slots: Tensor) -> None:
        """:meth:`write` to each place its share of ``slots`` (int64, on the host), which go to a GPU in one copy.

        Raises IllegalAddress if a write leaves the table; those before it are done by then.
        """
        total = slots.numel()
        if not total:
            return
        rows, firsts, lengths = np.array(places, dtype=np.int64).T
        starts = rows * self.cells.stride(0) + firsts
        before = np.cumsum(lengths) - lengths
        if starts.min() < 0 or (starts + lengths).max() > self.cells.numel():
            for (row, start, length), first in zip(places, before.tolist(), strict=True):
                self.write(row, start, slots[first : first + length])
            return
        staging = torch.empty(3 * total, dtype=torch.int32, pin_memory=self.cells.is_cuda)
        offsets, ids = staging[: 2 * total].view(torch.int64), staging[2 * total :]
        np.add(np.repeat(starts - before, lengths), np.arange(total), out=offsets.numpy())
        ids.copy_(slots)
        there = staging.to(self.cells.device, non_blocking=True)
        self.cells.view(-1).index_copy_(0, there[: 2 * total].view(torch.int64), there[2 * total :])

    def slots(self, row: int, start: int, stop: int) -> Tensor:
        """Cells [start, stop) of ``row`` as int64 slot ids (a copy)."""
        return self.table[row, start:stop].to(torch.int64)

    def check_guards(self) -> list[GuardViolation]:
        """Rows whose guard columns were written, i.e. whose owner stored past its row; re-armed on report."""
        if not self._guard.numel() or bool((self._guard == _GUARD_CELL).all()):
            return []
        found = []
        for row in (self._guard != _GUARD_CELL).any(dim=1).nonzero().flatten().tolist():
            bad = (self._guard[row] != _GUARD_CELL).nonzero().flatten()
            victim = f"req_to_token.row{row + 1}" if row < self._rows else "end of req_to_token"
            found.append(GuardViolation.of("req_to_token.row", victim, bad, self._guard.element_size()))
        self._guard.fill_(_GUARD_CELL)
        return found

"""Where findings go in record mode: a ring of rows on the device, read when the run is over.

Recording is tensor operations only, whether or not anything is wrong: nothing waits for the device, and the
same operations can be captured in a CUDA graph. What is only known on the device (is anything wrong, how
much, where) is computed there; a clean check writes its row to a spare one behind the ring.

When the ring is full later findings are dropped: the first ones tell where a fault came from. Totals count
on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import torch

from .checks import Bound, Part, bound_text
from .violation import Violation

MAX_ENTRIES = 4096
"""Distinct (site, kind, bound) a ring can count."""

_COLUMNS = (
    7  # entry, step, first bad index, its value, number of bad elements, limit, are value and limit floats
)


@dataclass(frozen=True)
class Entry:
    """What findings are counted by."""

    site: str
    kind: str
    phrase: str


class Ring:
    """The rows and counts of one device."""

    def __init__(self, device: torch.device, capacity: int, step: int) -> None:
        self.capacity = capacity
        # Tensors made in inference mode could not be written outside it.
        with torch.inference_mode(False):
            self._rows = torch.zeros((capacity + 1, _COLUMNS), dtype=torch.int64, device=device)
            self._cursor = torch.zeros((), dtype=torch.int64, device=device)
            self._totals = torch.zeros(MAX_ENTRIES, dtype=torch.int64, device=device)
            # On the device, so that replays of a captured graph see the step they run in.
            self._step = torch.full((), step, dtype=torch.int64, device=device)

    def set_step(self, step: int) -> None:
        """Findings from now on belong to ``step``."""
        self._step.fill_(step)

    def write(self, entry: int, values: torch.Tensor, part: Part) -> None:
        """Record what ``part`` says of ``values``, if anything is wrong."""
        count = part.bad.sum()
        first = part.bad.reshape(-1).view(torch.uint8).argmax()
        hit = (count > 0).to(torch.int64)
        value = torch.take(values, first)
        if values.is_floating_point():
            value = value.to(torch.float64).view(torch.int64)
        row = torch.stack(
            [
                torch.full_like(count, entry),
                self._step,
                first,
                value.to(torch.int64),
                count,
                torch.full_like(count, _bits(part.limit)),
                torch.full_like(count, isinstance(part.limit, float)),
            ]
        )
        slot = torch.where(hit.bool(), self._cursor.clamp(max=self.capacity), self.capacity)
        self._rows.index_copy_(0, slot.reshape(1), row.reshape(1, -1))
        self._cursor.add_(hit)
        self._totals[entry].add_(count)

    def rows(self) -> list[list[int]]:
        """The rows so far, oldest first. Waits for the device."""
        used = min(int(self._cursor.item()), self.capacity)
        rows: list[list[int]] = self._rows[:used].tolist()
        return rows

    def totals(self) -> list[int]:
        """Bad elements by entry, those of dropped findings included. Waits for the device."""
        totals: list[int] = self._totals.tolist()
        return totals

    def empty(self) -> None:
        """Forget the rows; totals stay."""
        self._cursor.zero_()


@dataclass
class Recorder:
    """The rings of all devices, and what their numbers mean."""

    capacity: int
    step: int = 0
    entries: dict[Entry, int] = field(default_factory=dict)
    rings: dict[torch.device, Ring] = field(default_factory=dict)

    def set_step(self, step: int) -> None:
        """Findings from now on belong to ``step``."""
        self.step = step
        for ring in self.rings.values():
            ring.set_step(step)

    def ring(self, device: torch.device) -> Ring:
        """The ring of ``device``, made at the first use.

        Raises ``RuntimeError`` when that is during a graph capture: the graph would then own the ring and
        wipe it at each replay.
        """
        ring = self.rings.get(device)
        if ring is None:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    f"the first probe on {device} runs inside a graph capture: "
                    f"call specdebug.async_probe.prepare('{device}') before it"
                )
            ring = self.rings[device] = Ring(device, self.capacity, self.step)
        return ring

    def write(self, site: str, kind: str, values: torch.Tensor, part: Part) -> None:
        """Record what ``part`` says of ``values``, if anything is wrong."""
        entry = Entry(site, kind, part.phrase)
        number = self.entries.setdefault(entry, len(self.entries))
        if number >= MAX_ENTRIES:
            raise RuntimeError(f"more than {MAX_ENTRIES} probes: is a site name computed, as in '{site}'?")
        self.ring(values.device).write(number, values, part)

    def drain(self) -> list[Violation]:
        """The findings since the last drain in the order they were made (several devices: step by step)."""
        found = [self._violation(row) for ring in self.rings.values() for row in ring.rows()]
        for ring in self.rings.values():
            ring.empty()
        return sorted(found, key=lambda violation: violation.step or 0) if len(self.rings) > 1 else found

    def totals(self) -> dict[tuple[str, str], int]:
        """Bad elements by (site, kind) since the start, those of dropped findings too; zeros are left out."""
        sums: dict[tuple[str, str], int] = {}
        for ring in self.rings.values():
            for entry, total in zip(self.entries, ring.totals(), strict=False):
                if total:
                    sums[entry.site, entry.kind] = sums.get((entry.site, entry.kind), 0) + total
        return sums

    def _violation(self, row: list[int]) -> Violation:
        number, step, index, value, count, limit, is_float = row
        entry = list(self.entries)[number]
        return Violation(
            site=entry.site,
            kind=entry.kind,
            step=step,
            index=index,
            value=_unbits(value) if is_float else value,
            count=count,
            bound=bound_text(entry.phrase, _unbits(limit) if is_float else limit),
        )


def _bits(number: Bound) -> int:
    """An int as itself, a float as the int64 of the same bits."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0] if isinstance(number, float) else number
    return bits


def _unbits(bits: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return number

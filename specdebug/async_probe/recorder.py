"""The place of findings in record mode: a ring for every device, read when the run is over.

On a GPU with Triton that is ``device.DeviceRing``, elsewhere a :class:`Ring`, whose tensor operations never wait for
the device. A full ring drops later findings: the first tell where a fault came from. Totals count on.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from .checks import CheckPart, bound_text
from .gate import ProbeFinding
from .rows import MAX_ENTRIES, RawFinding, float_bits, float_of

if TYPE_CHECKING:
    from .device import DeviceRing

_COLUMNS = 7  # entry, step, first bad index, its value, number of bad elements, limit, which of these are floats
_FLOAT_VALUE, _FLOAT_LIMIT = 1, 2


class Ring:
    """The rows and counts of one device."""

    def __init__(self, device: torch.device, capacity: int, step: int) -> None:
        self.capacity = capacity
        # Tensors made in inference mode could not be written outside it.
        with torch.inference_mode(False):
            self._rows = torch.zeros((capacity + 1, _COLUMNS), dtype=torch.int64, device=device)
            self._cursor = torch.zeros((), dtype=torch.int64, device=device)
            self._totals = torch.zeros(MAX_ENTRIES, dtype=torch.int64, device=device)
            self._step = torch.full((), step, dtype=torch.int64, device=device)

    def set_step(self, step: int) -> None:
        self._step.fill_(step)

    def write(self, entry: int, values: torch.Tensor, part: CheckPart) -> None:
        """Record the findings of ``part`` in ``values``, if anything is wrong."""
        count = part.bad.sum()
        first = part.bad.reshape(-1).view(torch.uint8).argmax()
        hit = (count > 0).to(torch.int64)
        value = torch.take(values, first)
        if values.is_floating_point():
            value = value.to(torch.float64).view(torch.int64)
        floats = _FLOAT_VALUE * values.is_floating_point() + _FLOAT_LIMIT * isinstance(part.limit, float)
        limit = float_bits(part.limit) if isinstance(part.limit, float) else part.limit
        number, limits, formats = (torch.full_like(count, each) for each in (entry, limit, floats))
        row = torch.stack([number, self._step, first, value.to(torch.int64), count, limits, formats])
        slot = torch.where(hit.bool(), self._cursor.clamp(max=self.capacity), self.capacity)
        self._rows.index_copy_(0, slot.reshape(1), row.reshape(1, -1))
        self._cursor.add_(hit)
        self._totals[entry].add_(count)

    def take(self) -> list[RawFinding]:
        """The findings since the last call, oldest first. Waits for the device."""
        used = min(int(self._cursor.item()), self.capacity)
        self._cursor.zero_()
        found = []
        for entry, step, index, value, count, limit, floats in self._rows[:used].tolist():
            value = float_of(value) if floats & _FLOAT_VALUE else value
            limit = float_of(limit) if floats & _FLOAT_LIMIT else limit
            found.append(RawFinding(entry, step, index, value, count, limit))
        return found

    def poll(self) -> list[RawFinding]:
        """As :meth:`take`; where this ring is used, a device is no further than the host."""
        return self.take()

    def salvage(self) -> list[RawFinding]:
        """As :meth:`take` on a CPU, which is never lost; nothing elsewhere: this ring is on the device."""
        return self.take() if self._rows.device.type == "cpu" else []

    def totals(self, entries: int) -> list[int]:
        """Bad elements by entry, those of dropped findings included. Waits for the device."""
        return [*self._totals[:entries].tolist()]


@dataclass
class Recorder:
    """The rings of all devices, and the meaning of their numbers."""

    capacity: int
    step: int = 0
    entries: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """The number by which findings of a (site, kind, phrase) are counted."""
    rings: dict[torch.device, Ring | DeviceRing] = field(default_factory=dict)
    _read: list[RawFinding] = field(default_factory=list)
    """Findings that have left their ring and were not handed over: another ring's device failed just then."""

    def set_step(self, step: int) -> None:
        self.step = step
        for ring in self.rings.values():
            ring.set_step(step)

    def ring(self, device: torch.device) -> Ring | DeviceRing:
        """The ring of ``device``, made at the first use. Raises ``RuntimeError`` if that is in a graph capture."""
        ring = self.rings.get(device)
        if ring is None:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                # The graph would own the ring and wipe it at each replay.
                raise RuntimeError(
                    f"the first probe on {device} runs inside a graph capture: "
                    f"call specdebug.async_probe.prepare('{device}') before it"
                )
            if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
                from .device import DeviceRing  # imports Triton, which only a GPU needs

                ring = DeviceRing(device, self.capacity, self.step)
            else:
                ring = Ring(device, self.capacity, self.step)
            self.rings[device] = ring
        return ring

    def number(self, site: str, kind: str, phrase: str) -> int:
        """The number of an entry, the next free one at its first use. Raises ``RuntimeError`` if there are too many."""
        number = self.entries.setdefault((site, kind, phrase), len(self.entries))
        if number >= MAX_ENTRIES:
            raise RuntimeError(f"more than {MAX_ENTRIES} probes: is a site name computed, as in '{site}'?")
        return number

    def write(self, site: str, kind: str, values: torch.Tensor, part: CheckPart) -> None:
        """Record the findings of ``part`` in ``values``, which are not a GPU's if that has kernels for it."""
        number = self.number(site, kind, part.phrase)
        ring = self.ring(values.device)
        assert isinstance(ring, Ring)
        ring.write(number, values, part)

    def findings(self, how: Literal["take", "poll", "salvage"]) -> list[ProbeFinding]:
        """The findings since the last call in the order they were made (several devices: step by step), that a method
        of the rings brings: all of them, those that the host can have without waiting, or once a device is lost."""
        for ring in self.rings.values():
            self._read += getattr(ring, how)()
        entries, found = list(self.entries), []
        findings, self._read = self._read, []
        for raw in findings:
            site, kind, phrase = entries[raw.entry]
            bound = bound_text(phrase, raw.limit)
            found.append(ProbeFinding(site, kind, raw.step, raw.index, raw.value, raw.count, bound))
        return sorted(found, key=lambda finding: finding.step or 0) if len(self.rings) > 1 else found

    def totals(self) -> dict[tuple[str, str], int]:
        """Bad elements by (site, kind) since the start, those of dropped findings too; zeros are left out."""
        sums: Counter[tuple[str, str]] = Counter()
        for ring in self.rings.values():
            for (site, kind, _), total in zip(self.entries, ring.totals(len(self.entries)), strict=True):
                sums[site, kind] += total
        return dict(+sums)

"""The detection matrix: what caught which injected fault."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from specdebug.campaign.loops.fault_matrix import FaultMatrix


@dataclass(frozen=True)
class Injected:
    """One run with one fault. ``effective``: the fault changed something, so that it can be seen at all."""

    fault: str
    seed: int
    effective: bool
    caught: Mapping[str, int]


@dataclass(frozen=True)
class Cell:
    """Of the effective injections, how many were caught; after how many steps in the mean (``steps``) and at most."""

    effective: int
    caught: int
    steps: float | None
    latest: int


@dataclass(frozen=True)
class DetectionMatrix:
    """All injections of a verification."""

    rows: Sequence[Injected]

    @classmethod
    def of(cls, matrix: FaultMatrix) -> DetectionMatrix:
        """The injections of a matrix that was run."""
        runs = matrix.to_dict()["runs"]
        return cls(tuple(Injected(run["fault"], run["seed"], run["effective"], run["caught"]) for run in runs))

    @cached_property
    def classes(self) -> list[str]:
        """Classes of faults, in the order in which they come."""
        return list(dict.fromkeys(row.fault for row in self.rows))

    @cached_property
    def detectors(self) -> list[str]:
        """Detectors, those that caught most first."""
        counts = Counter(name for row in self._effective for name in row.caught)
        return sorted(counts, key=lambda name: (-counts[name], name))

    @cached_property
    def sole(self) -> dict[str, list[str]]:
        """Of each detector that alone caught an injection, the classes of such injections."""
        found: dict[str, dict[str, None]] = {}
        for row in self._effective:
            if len(row.caught) == 1:
                (name,) = row.caught
                found.setdefault(name, {})[row.fault] = None
        return {name: list(faults) for name, faults in found.items()}

    def effective(self, fault: str) -> int:
        """Injections of the class that changed something."""
        return self.any(fault).effective

    def caught(self, fault: str) -> int:
        """Effective injections of the class that some detector saw."""
        return self.any(fault).caught

    @property
    def missed(self) -> list[Injected]:
        """Effective injections that nothing saw."""
        return [row for row in self._effective if not row.caught]

    def cell(self, fault: str, detector: str) -> Cell:
        """The injections of a class that a detector saw."""
        rows = self._by_class[fault]
        return _cell(len(rows), [row.caught[detector] for row in rows if detector in row.caught])

    def any(self, fault: str) -> Cell:
        """The same for all detectors together, the first to see an injection counted."""
        rows = self._by_class[fault]
        return _cell(len(rows), [min(row.caught.values()) for row in rows if row.caught])

    @cached_property
    def _effective(self) -> list[Injected]:
        return [row for row in self.rows if row.effective]

    @cached_property
    def _by_class(self) -> dict[str, list[Injected]]:
        grouped: defaultdict[str, list[Injected]] = defaultdict(list)
        for row in self._effective:
            grouped[row.fault].append(row)
        return grouped


def _cell(effective: int, steps: Sequence[int]) -> Cell:
    return Cell(effective, len(steps), sum(steps) / len(steps) if steps else None, max(steps, default=0))

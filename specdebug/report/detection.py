"""The detection matrix: what caught which injected fault."""

from __future__ import annotations

from collections import Counter
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
    def effective(self) -> list[Injected]:
        """Injections that changed something."""
        return [row for row in self.rows if row.effective]

    @cached_property
    def detectors(self) -> list[str]:
        """Detectors, those that caught most first."""
        counts = Counter(name for row in self.effective for name in row.caught)
        return sorted(counts, key=lambda name: (-counts[name], name))

    @cached_property
    def sole(self) -> dict[str, list[str]]:
        """Of each detector that alone caught an injection, the classes of such injections."""
        alone = dict.fromkeys((next(iter(row.caught)), row.fault) for row in self.effective if len(row.caught) == 1)
        return {name: [fault for one, fault in alone if one == name] for name in dict.fromkeys(one for one, _ in alone)}

    @property
    def missed(self) -> list[Injected]:
        """Effective injections that nothing saw."""
        return [row for row in self.effective if not row.caught]

    def cell(self, fault: str, detector: str | None = None) -> Cell:
        """The injections of a class that a detector saw; without one, any, the first to see an injection counted."""
        rows = self._by_class.get(fault, [])
        if detector is None:
            steps = [min(row.caught.values()) for row in rows if row.caught]
        else:
            steps = [row.caught[detector] for row in rows if detector in row.caught]
        return Cell(len(rows), len(steps), sum(steps) / len(steps) if steps else None, max(steps, default=0))

    @cached_property
    def _by_class(self) -> dict[str, list[Injected]]:
        grouped: dict[str, list[Injected]] = {}
        for row in self.effective:
            grouped.setdefault(row.fault, []).append(row)
        return grouped

"""The row of each mutant that was measured, and counts of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specdebug.apps.mutants.sound import FirstDifference
from specdebug.search.stats.intervals import Interval, clopper_pearson

CONFIDENCE = 0.95


@dataclass(frozen=True)
class MutantRow:
    """One mutant, measured. ``scenario``: the arm that caught it, as scenario/arm; ``step``: where that saw it first.

    ``effective``: some tensor, token or book differed, or the engine failed. ``by_time``: it was caught by a limit of
    time or steps alone. ``rounding``: floating-point values differed, no more than rounding makes them, and nothing
    else did. ``difference``: the first from the sound engine, in the arm that caught it or else in the first that
    showed one. ``ran``: arms it was run in, of ``reached`` that run its line. ``rejected``: what an arm said that took
    the scenario for wrong, or the machine for too small.
    """

    id: str
    file: str
    function: str
    line: int
    operator: str
    diff: str
    effective: bool
    caught: bool
    signature: str | None = None
    scenario: str | None = None
    step: int | None = None
    by_time: bool = False
    rounding: bool = False
    difference: FirstDifference | None = None
    ran: int = 0
    reached: int = 0
    seconds: float = 0.0
    rejected: str = ""

    @property
    def survived(self) -> bool:
        return self.effective and not self.caught

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        """One line of JSON, as a journal keeps it."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_text(cls, text: str) -> MutantRow:
        fields = json.loads(text)
        difference = fields.pop("difference")
        return cls(**fields, difference=None if difference is None else FirstDifference(**difference))


@dataclass(frozen=True)
class Score:
    """Counts of some mutants."""

    name: str
    mutants: int
    effective: int
    caught: int
    by_time: int

    @property
    def rate(self) -> float | None:
        """The part of the effective that was caught; None of nothing."""
        return self.caught / self.effective if self.effective else None

    @property
    def interval(self) -> Interval:
        """Where the part lies in all mutants that these were drawn from."""
        return clopper_pearson(self.caught, self.effective, CONFIDENCE) if self.effective else Interval(0.0, 1.0)

    def to_dict(self) -> dict[str, Any]:
        interval = self.interval
        return {**asdict(self), "score": self.rate, "interval": [interval.low, interval.high]}


def score(name: str, rows: Iterable[MutantRow]) -> Score:
    """Count rows."""
    rows = list(rows)
    effective = [row for row in rows if row.effective]
    caught = [row for row in effective if row.caught]
    return Score(name, len(rows), len(effective), len(caught), sum(row.by_time for row in caught))


def scores(rows: Sequence[MutantRow], key: Callable[[MutantRow], str]) -> list[Score]:
    """Counts by ``key``, in alphabetical order."""
    return [score(name, [row for row in rows if key(row) == name]) for name in sorted(set(map(key, rows)))]

"""Minimising simulated scenarios of fifty requests of which one to four are needed to fail.

``python benchmarks/minimise_simulation.py [--cases 200] [--jobs 2] [--seed 0] [--max-trials 400]``

A run with all that is needed fails 30% of the time. A second bug, with a signature of its own, needs one or two other
requests, fails 10% of the time, and hides the first half of the times both strike. A run of anything fails falsely, in
the way that is followed, in 0, 1 or 2% of the trials. In half of the cases a seed that fails goes on failing nine times
in ten when something else is taken away, as on an engine whose runs repeat; in the others a seed says nothing. Every
case is seeded by its number. The signature is kept where what is left still holds all that its failure needs.

Exits with 1 when fewer than 98% of the cases keep their signature, or fewer than 98% have at most four requests left.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from specdebug.base.trial import Trial, TrialResult
from specdebug.search.minimise import Minimiser, MinimiseWatcher, Summary

REQUESTS = 50
RATE, OTHER_RATE = 0.3, 0.1
FALSE = (0.0, 0.01, 0.02)
PERSISTENT = 0.9
WANTED, OTHER = "nan@wanted", "mismatch@other"

Kept = frozenset[int]
R = TypeVar("R")


@dataclass(frozen=True)
class Case:
    """One simulated scenario. ``persistent``: how often a seed's end does not change when others are dropped."""

    number: int
    needed: Kept
    other: Kept
    false: float
    persistent: float

    def run(self, kept: Kept, seed: int) -> str | None:
        """The signature of one run, None when it is clean."""
        draw = random.Random(f"{self.number}:{seed}:{sorted(kept)}")
        always = random.Random(f"{self.number}:{seed}")
        as_ever = draw.random() < self.persistent
        source = always if as_ever else draw
        wanted, other, first = source.random() < RATE, source.random() < OTHER_RATE, source.random() < 0.5
        wanted = wanted and self.needed <= kept
        other = other and self.other <= kept
        if draw.random() < self.false:
            return WANTED
        if wanted and other:
            return WANTED if first else OTHER
        return WANTED if wanted else OTHER if other else None


@dataclass(frozen=True)
class Requests:
    """The only stage: all requests."""

    title: str = "requests"
    labels: tuple[str, ...] = tuple(f"r{number}" for number in range(REQUESTS))
    kinds: tuple[str, ...] = ()

    def without(self, removed: Kept) -> Kept | None:
        """The others; a scenario has at least one."""
        return frozenset(range(REQUESTS)) - removed or None


class SimulatedSpace:
    """Fifty requests to take away."""

    start = frozenset(range(REQUESTS))

    def __init__(self) -> None:
        self._done = False

    def next_stage(self) -> Requests | None:
        """Once."""
        self._done, was_done = True, self._done
        return None if was_done else Requests()

    def took(self, removed: Kept, confirmed: Kept) -> None:
        """Nothing follows."""


class SimulatedTrials:
    """Runs a case, one trial at a time, and keeps nothing."""

    def __init__(self, case: Case, max_trials: int) -> None:
        self._case = case
        self._numbers = iter(range(max_trials))
        self._left: dict[int, Kept] = {}

    def leave(self, number: int, left: Kept) -> None:
        """Remember what is left in the trial of a number."""
        self._left[number] = left

    def run(self, whole: Callable[[], R]) -> tuple[R, None]:
        """Nothing stops it."""
        return whole(), None

    def next(self, choose: Callable[[int, Sequence[Trial]], Trial | None]) -> tuple[Trial, TrialResult, bool] | None:
        """Run what is chosen at once."""
        number = next(self._numbers, None)
        trial = None if number is None else choose(number, ())
        if trial is None:
            return None
        signature = self._case.run(self._left[trial.number], trial.seed)
        return trial, TrialResult("fail" if signature else "pass", signature, 0.0), False


@dataclass(frozen=True)
class Row:
    """What came of a case."""

    case: Case
    left: int
    trials: int
    kept: bool
    exact: bool
    finished: bool


def case_of(seed: int, number: int) -> Case:
    """The case of this number."""
    rng = random.Random(f"{seed}:{number}")
    drawn = rng.sample(range(REQUESTS), 6)
    size, other = 1 + number % 4, rng.choice((1, 2))
    persistent = PERSISTENT if (number // 4) % 2 else 0.0
    return Case(number, frozenset(drawn[:size]), frozenset(drawn[4 : 4 + other]), FALSE[number // 8 % 3], persistent)


def play(seed: int, number: int, max_trials: int) -> Row:
    """Minimise one case."""
    case = case_of(seed, number)
    trials = SimulatedTrials(case, max_trials)
    summary: Summary[Kept] = Minimiser(
        SimulatedSpace(), trials, trials.leave, seeds=lambda trial: trial, max_trials=max_trials
    ).run(MinimiseWatcher())
    left = summary.smallest
    needed = case.needed if summary.followed == WANTED else case.other
    finished = summary.reason == "done"
    return Row(case, len(left), summary.trials, needed <= left, needed == left, finished)


def _play(task: tuple[int, int, int]) -> Row:
    return play(*task)


def table(rows: Sequence[Row]) -> Table:
    """All cases, by how many requests were needed and by whether seeds tell."""
    titles = ("seeds", "needed", "cases", "left, mean", "most", "trials, mean", "most", "signature kept", "smallest")
    drawn = Table(*titles)
    for name, persistent in (("repeat", PERSISTENT), ("say nothing", 0.0)):
        for size in range(1, 5):
            alike = [row for row in rows if row.case.persistent == persistent and len(row.case.needed) == size]
            _add(drawn, name, str(size), alike)
    for false in FALSE:
        _add(drawn, "all", f"false {false:.0%}", [row for row in rows if row.case.false == false])
    _add(drawn, "all", "all", rows)
    return drawn


def _add(drawn: Table, name: str, needed: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    left, trials = [row.left for row in rows], [row.trials for row in rows]
    kept, exact = (sum(flags) for flags in ([row.kept for row in rows], [row.exact for row in rows]))
    drawn.add_row(
        name,
        needed,
        str(len(rows)),
        f"{statistics.mean(left):.2f}",
        str(max(left)),
        f"{statistics.mean(trials):.0f}",
        str(max(trials)),
        f"{kept}/{len(rows)}",
        f"{exact}/{len(rows)}",
    )


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-trials", type=int, default=400)
    chosen = parser.parse_args()
    tasks = [(chosen.seed, number, chosen.max_trials) for number in range(chosen.cases)]
    with ProcessPoolExecutor(chosen.jobs) as executor:
        rows = list(executor.map(_play, tasks, chunksize=5))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = used.ru_utime + used.ru_stime
    Console(width=120).print(table(rows))
    kept, small = sum(row.kept for row in rows), sum(row.left <= 4 for row in rows)
    print(
        f"{len(rows)} cases in {processor_s:.0f} s of processor time: signature kept in {kept / len(rows):.1%}, "
        f"at most 4 requests left in {small / len(rows):.1%}, "
        f"ended before trial {chosen.max_trials} in {sum(row.finished for row in rows) / len(rows):.1%}"
    )
    return 0 if min(kept, small) >= 0.98 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())

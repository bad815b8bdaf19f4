"""Measuring a failure rate: the same trial over and over, with fresh seeds, until a rule says that it is enough.

Results count in the order of their trials' numbers, whichever ends first: a failure that ends early must not count
before the passes that were begun before it, or the rate would depend on how long they take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, Protocol

from specdebug.errors import SpecDebugError
from specdebug.trials.journal import Journal
from specdebug.trials.source import TrialSource
from specdebug.trials.trial import Trial, TrialResult, trial_seed

Reason = Literal["enough", "untestable", "max-trials", "interrupted", "trouble"]

HOPELESS = 20
"""Trials after which it ends if not a single one was testable."""


@dataclass(frozen=True)
class Tally:
    """What is counted so far.

    Attributes:
        trials: that count, whatever came of them.
        resumed: of these, how many were in the journal already.
        running: trials under way.
        runs: trials with a verdict on the failure that is measured.
        failures: how many of ``runs`` showed it.
        untestable: trials that could not have shown it.
        masked: trials that failed in another way, and so say nothing of it.
        signatures: every signature seen, with its failures, the most frequent first.
        first: of every signature, the first trial that had it.
    """

    trials: int = 0
    resumed: int = 0
    running: int = 0
    runs: int = 0
    failures: int = 0
    untestable: int = 0
    masked: int = 0
    signatures: tuple[tuple[str, int], ...] = ()
    first: tuple[tuple[str, Trial], ...] = ()


@dataclass(frozen=True)
class Sampled:
    """What it ended with; ``trouble`` is what stopped it, for that reason."""

    reason: Reason
    tally: Tally
    trouble: SpecDebugError | None = None


class Watcher(Protocol):
    """Is told how it goes."""

    def moved(self, tally: Tally) -> None:
        """Trials were read from the journal, or started."""

    def counted(self, trial: Trial, result: TrialResult, tally: Tally) -> None:
        """A trial that was run now counts."""


class Sampling:
    """One measurement.

    Args:
        source: runs the trials.
        journal: keeps them; those in it are not run again.
        enough: of failures and runs, whether to stop. Asked after every run, in order.
        reverted: what every trial switches on.
        seed: of the trials' own seeds.
        max_trials: stop after so many.
        pattern: measure these failures only (shell wildcards); by default, any.
    """

    def __init__(
        self,
        source: TrialSource,
        journal: Journal,
        enough: Callable[[int, int], bool],
        *,
        reverted: frozenset[str],
        seed: int,
        max_trials: int,
        pattern: str | None = None,
    ) -> None:
        self._source = source
        self._journal = journal
        self._enough = enough
        self._reverted = reverted
        self._seed = seed
        self._max_trials = max_trials
        self._pattern = pattern
        self._known = dict(journal.trials)
        self._journalled = frozenset(self._known)
        self._counts: Counter[str] = Counter()
        self._first: dict[str, Trial] = {}
        self._trials = self._resumed = self._runs = self._failures = self._untestable = 0
        self._running: set[int] = set()
        self._begun = 0

    def run(self, watcher: Watcher) -> Sampled:
        """Measure to the end. Whatever stops it, what was measured is in the journal, and the tally says how far it
        came; the source is closed."""
        reason: Reason
        trouble = None
        try:
            reason = self._run(watcher)
        except KeyboardInterrupt:
            reason = "interrupted"
        except SpecDebugError as error:
            reason, trouble = "trouble", error
        finally:
            self._source.close()
        self._running.clear()
        return Sampled(reason, self._tally(), trouble)

    def _run(self, watcher: Watcher) -> Reason:
        while True:
            while self._trials in self._known:
                trial, result = self._known[self._trials]
                self._count(trial, result)
                if trial.number not in self._journalled:
                    watcher.counted(trial, result, self._tally())
                if reason := self._over(result):
                    return reason
            self._start()
            watcher.moved(self._tally())
            trial, result = self._source.wait()
            self._running.discard(trial.number)
            self._journal.record(trial, result)
            self._known[trial.number] = (trial, result)

    def _start(self) -> None:
        """Keep the source busy, but run no further ahead of a slow trial than is needed for that."""
        capacity = self._source.capacity
        while len(self._running) < capacity and self._begun < min(self._trials + 2 * capacity - 1, self._max_trials):
            number, self._begun = self._begun, self._begun + 1
            if number not in self._known:
                self._source.start(Trial(number, self._reverted, trial_seed(self._seed, number)))
                self._running.add(number)

    def _count(self, trial: Trial, result: TrialResult) -> None:
        self._trials += 1
        self._resumed += trial.number in self._journalled
        if result.outcome == "untestable":
            self._untestable += 1
            return
        if result.outcome == "fail":
            name = result.signature or "fail"
            self._counts[name] += 1
            self._first.setdefault(name, trial)
            if self._pattern is not None and not fnmatchcase(name, self._pattern):
                return
            self._failures += 1
        self._runs += 1

    def _over(self, result: TrialResult) -> Reason | None:
        if result.outcome != "untestable" and self._runs and self._enough(self._failures, self._runs):
            return "enough"
        if self._trials >= self._max_trials:
            return "max-trials"
        return "untestable" if self._trials == self._untestable >= HOPELESS else None

    def _tally(self) -> Tally:
        return Tally(
            trials=self._trials,
            resumed=self._resumed,
            running=len(self._running),
            runs=self._runs,
            failures=self._failures,
            untestable=self._untestable,
            masked=self._trials - self._runs - self._untestable,
            signatures=tuple(self._counts.most_common()),
            first=tuple(self._first.items()),
        )

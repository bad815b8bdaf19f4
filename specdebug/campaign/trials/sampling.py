"""Measure a failure rate: the same trial over and over, with fresh seeds, until a rule says that it is enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials import inorder
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.source import TrialSource
from specdebug.campaign.trials.trial import Trial, TrialResult

Reason = Literal["enough", "untestable", "max-trials", "interrupted", "trouble"]

HOPELESS = 20
"""Trials after which it ends if not a single one was testable."""


@dataclass(frozen=True)
class Tally:
    """The counts so far.

    Attributes:
        trials: that count, whatever came of them; ``resumed`` of these were in the journal already.
        runs: trials with a verdict on the failure that is measured; ``failures`` of them showed it.
        untestable: trials that could not have shown it.
        masked: trials that failed in another way, and so say nothing of it.
        signatures: every signature seen, with its failures, the most frequent first; ``measured`` are those of them
            that are the failure that is measured.
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
    measured: tuple[str, ...] = ()
    first: tuple[tuple[str, Trial], ...] = ()


@dataclass(frozen=True)
class Sampled:
    """The end of a measurement; for the reason "trouble", ``trouble`` stopped it."""

    reason: Reason
    tally: Tally
    trouble: SpecDebugError | None = None


Watcher = inorder.Watcher[Tally]


class RateSampling:
    """One measurement of a source's trials, kept in a journal.

    Every trial switches ``reverted`` on. ``enough`` is asked after every run, in order, if failures and runs suffice.
    With a ``pattern`` (shell wildcards) only failures that fit it are measured, else any.
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
        self._in_order = inorder.InOrder(source, journal, seed, max_trials)
        self._enough = enough
        self._reverted = reverted
        self._max_trials = max_trials
        self._pattern = pattern
        self._counts: Counter[str] = Counter()
        self._first: dict[str, Trial] = {}
        self._trials = self._resumed = self._runs = self._failures = self._untestable = 0

    def run(self, watcher: Watcher) -> Sampled:
        """Measure to the end, and close the source. Whatever stops it, what was measured is in the journal, and the
        tally says how far it came."""
        reason, trouble = self._in_order.run(lambda: self._run(watcher))
        return Sampled(reason, self._tally(), trouble)

    def _run(self, watcher: Watcher) -> Reason:
        while True:
            trial, result = self._in_order.next(lambda pending: self._reverted, lambda: watcher.moved(self._tally()))
            self._count(trial, result)
            if not self._in_order.was_kept(trial):
                watcher.counted(trial, result, self._tally())
            if reason := self._over(result):
                return reason

    def _count(self, trial: Trial, result: TrialResult) -> None:
        self._trials += 1
        self._resumed += self._in_order.was_kept(trial)
        if result.outcome == "untestable":
            self._untestable += 1
            return
        if result.outcome == "fail":
            name = result.signature or "fail"
            self._counts[name] += 1
            self._first.setdefault(name, trial)
            if not self._is_measured(name):
                return
            self._failures += 1
        self._runs += 1

    def _is_measured(self, signature: str) -> bool:
        return self._pattern is None or fnmatchcase(signature, self._pattern)

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
            running=self._in_order.running,
            runs=self._runs,
            failures=self._failures,
            untestable=self._untestable,
            masked=self._trials - self._runs - self._untestable,
            signatures=tuple(self._counts.most_common()),
            measured=tuple(name for name, _ in self._counts.most_common() if self._is_measured(name)),
            first=tuple(self._first.items()),
        )

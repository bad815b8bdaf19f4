"""Campaigns whose trials are no work: a source that asks a function, a journal without a disk, a watcher that notes."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.trials.campaign import Campaign, Candidate, TrialSource
from specdebug.campaign.trials.journal import Journal
from specdebug.campaign.trials.search import CulpritSearch, Findings
from specdebug.search.posterior import BayesianSearch

Behaviour = Callable[[Trial], TrialResult | BaseException]

PASSED = TrialResult("pass", None, 0.1)
UNTESTABLE = TrialResult("untestable", None, 0.1)


def failed(signature: str = "exit:1") -> TrialResult:
    return TrialResult("fail", signature, 0.1, f"saw {signature}")


class Source:
    """Trials whose results ``behave`` gives, or raises. They end in an order that is drawn, or without one the last
    that was started first; after ``stop_after`` of them comes ``error``."""

    identity = "id"
    rerun = 0

    def __init__(
        self,
        behave: Behaviour,
        capacity: int = 1,
        order: int | None = 0,
        stop_after: int = 10**9,
        error: BaseException | None = None,
        names: Sequence[str] = "",
    ) -> None:
        self.behave, self.capacity = behave, capacity
        self.candidates = tuple(Candidate(name, name.upper()) for name in names)
        self.started: list[Trial] = []
        self.ran: list[Trial] = []
        self.closed = False
        self._random = None if order is None else random.Random(order)
        self._running: list[Trial] = []
        self._stop_after, self._error = stop_after, error or KeyboardInterrupt()

    def start(self, trial: Trial) -> None:
        assert len(self._running) < self.capacity
        self._running.append(trial)
        self.started.append(trial)

    def wait(self) -> tuple[Trial, TrialResult]:
        if len(self.ran) == self._stop_after:
            raise self._error
        trial = self._running.pop(-1 if self._random is None else self._random.randrange(len(self._running)))
        result = self.behave(trial)
        if isinstance(result, BaseException):
            raise result
        self.ran.append(trial)
        return trial, result

    def close(self) -> None:
        self.closed = True


class Kept(Journal):
    """A journal without a disk: searches are many."""

    def __init__(self) -> None:
        self.trials = {}

    def record(self, trial: Trial, result: TrialResult) -> None:
        assert trial.number not in self.trials
        self.trials[trial.number] = (trial, result)


class Notes:
    """Notes what a search says of itself."""

    def __init__(self) -> None:
        self.standings: list[Any] = []
        self.counted_numbers: list[int] = []

    def moved(self, standing: Any) -> None:
        self.standings.append(standing)

    def counted(self, trial: Trial, result: TrialResult, standing: Any) -> None:
        self.counted_numbers.append(trial.number)


def find(
    source: TrialSource,
    journal: Journal,
    chooser: Callable[[], BayesianSearch],
    *,
    seed: int,
    max_trials: int,
    watcher: Any = None,
    **options: Any,
) -> Findings:
    """Search for a culprit among a source's candidates."""
    search = CulpritSearch(source.candidates, lambda _: chooser(), max_trials=max_trials, **options)
    return Campaign(source, journal, seed, max_trials).search(search, watcher or Notes())

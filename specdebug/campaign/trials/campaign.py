"""A campaign: trials that a source runs, that count in the order of their numbers, and that a journal keeps.

All searches run through it: bisection, rates, minimising, mutants. A failure that ends early must not count before
passes begun before it, or a rate would depend on how long they take. A trial is chosen when exactly those count that
are at least ``2 * capacity - 1`` before it: so the same results give the same trials however the work is timed, killed
and resumed. A slow trial delays others only so many ahead of it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult, trial_seed
from specdebug.campaign.trials.journal import Journal
from specdebug.workers.machine_failure import MachineFailed, machine_failure

S = TypeVar("S")
S_in = TypeVar("S_in", contravariant=True)
S_out = TypeVar("S_out", covariant=True)
A = TypeVar("A", covariant=True)
R = TypeVar("R")
Work = TypeVar("Work")
Work_in = TypeVar("Work_in", contravariant=True)
End = TypeVar("End", covariant=True)

Stopped = Literal["interrupted", "trouble"]
Choose = Callable[[int, Sequence[Trial]], Trial | None]
"""Gives the trial of a number, given those that were chosen and do not count yet; None if there is none to make as long
as these do not."""


@dataclass(frozen=True)
class Candidate:
    """A possible cause. ``id`` is what a trial's set holds, ``label`` what a reader is shown; ``dear``: a trial with it
    starts the engine anew."""

    id: str
    label: str
    dear: bool = False


class Runner(Protocol[Work_in, End]):
    """Does pieces of work, several at a time."""

    @property
    def capacity(self) -> int:
        """The most that may be under way at a time; at least 1."""

    def start(self, work: Work_in, /) -> None:
        """Begin one, fewer than ``capacity`` being under way, and return at once. Raises SpecDebugError when none can
        be done at all."""

    def wait(self) -> End:
        """Return the end of the next to end, at least one being under way. A KeyboardInterrupt passes through."""


class TrialSource(Runner[Trial, tuple[Trial, TrialResult]], Protocol):
    """Runs trials: all that a search needs to know about commands, commits and scenarios.

    ``candidates``: everything that can be switched. ``identity``: a digest that every node of a cluster must have, of
    the question and of files that they share. ``rerun``: how many trials were lost with their worker, and begun again.
    """

    @property
    def candidates(self) -> tuple[Candidate, ...]: ...

    @property
    def identity(self) -> str: ...

    @property
    def rerun(self) -> int: ...

    def close(self) -> None:
        """End whatever runs, and clean up. May be called more than once."""


class Watcher(Protocol[S_in]):
    """Is told how a search goes; ``standing`` is what is known by then."""

    def moved(self, standing: S_in, /) -> None:
        """Take in that trials were read from the journal, or started."""

    def counted(self, trial: Trial, result: TrialResult, standing: S_in, /) -> None:
        """Take in a trial that was run and now counts."""


class Search(Protocol[S_out, A]):
    """A search as its campaign sees it: it picks trials and takes their results, and knows nothing of the work."""

    def pick(self, pending: Sequence[frozenset[str]]) -> frozenset[str]:
        """Return what the next trial switches on, given the same of those that were chosen and do not count yet."""

    def take(self, trial: Trial, result: TrialResult, kept: bool) -> str | None:
        """Take in a trial that counts; ``kept``: the journal held it from the start. Return why it is over, or None."""

    def standing(self, running: int) -> S_out:
        """Return what is known while so many trials run."""

    def end(self, reason: str, trouble: SpecDebugError | None) -> A:
        """Return the answer, given why it is over: one of its own reasons, "interrupted", or for "trouble" the error
        that stopped it."""


def until_stopped(whole: Callable[[], R]) -> tuple[R | Stopped, SpecDebugError | None]:
    """Return what ``whole`` returned, or what stopped it: a signal, or "trouble" and the error. A full disk, a refused
    process or thread and exhausted memory in this process stop it, too."""
    try:
        return whole(), None
    except KeyboardInterrupt:
        return "interrupted", None
    except SpecDebugError as error:
        return "trouble", error
    except (OSError, RuntimeError, MemoryError) as error:
        failure = machine_failure(error)
        if failure is None:
            raise
        return "trouble", MachineFailed(failure)


def as_they_end(runner: Runner[Work, End], waiting: Iterable[Work]) -> Iterator[End]:
    """Do all of some work, as much at a time as the runner takes. Each piece is asked for when it is to begin."""
    left, under_way = iter(waiting), 0
    while True:
        while under_way < runner.capacity and (work := next(left, None)) is not None:
            runner.start(work)
            under_way += 1
        if not under_way:
            return
        yield runner.wait()
        under_way -= 1


@dataclass
class Campaign:
    """The trials 0, 1, 2 and so on of one search, ``max_trials`` at most; ``seed`` gives them their own seeds."""

    source: TrialSource
    journal: Journal
    seed: int
    max_trials: int

    def __post_init__(self) -> None:
        self._known = dict(self.journal.trials)
        self._journalled = frozenset(self._known)
        self._chosen = 0
        self._pending: deque[Trial] = deque()
        self._waiting: deque[Trial] = deque()
        self._running: set[int] = set()

    def search(self, search: Search[S, A], watcher: Watcher[S]) -> A:
        """Search to the end, which comes with trial ``max_trials`` at the latest, and close the source. Whatever stops
        it, what was measured is in the journal, and the answer says how far it came."""

        def choose(number: int, pending: Sequence[Trial]) -> Trial:
            if number in self._known:  # any trial that was ever made says something
                return self._known[number][0]
            return Trial(number, search.pick([trial.reverted for trial in pending]), trial_seed(self.seed, number))

        def whole() -> str:
            while True:
                counted = self.next(choose, lambda: watcher.moved(search.standing(len(self._running))))
                assert counted is not None, "max_trials count"
                over = search.take(*counted)
                trial, result, kept = counted
                if not kept:
                    watcher.counted(trial, result, search.standing(len(self._running)))
                if over is not None:
                    return over

        return search.end(*self.run(whole))

    def next(self, choose: Choose, moved: Callable[[], None] = lambda: None) -> tuple[Trial, TrialResult, bool] | None:
        """Return the next trial that counts, and True if the journal held it from the start; None once all that were
        chosen count, and no other is to be.

        The journal's trial of a number takes the place of the one that ``choose`` gives. ``moved`` is called before
        every wait. Raises SpecDebugError when a trial cannot be run, or not be kept; KeyboardInterrupt when this
        process was asked to end.
        """
        while True:
            interrupts.check()
            self._choose_ahead(choose)
            if not self._pending:
                return None
            if self._pending[0].number in self._known:
                trial = self._pending.popleft()
                return trial, self._known[trial.number][1], trial.number in self._journalled
            while self._waiting and len(self._running) < self.source.capacity:
                trial = self._waiting.popleft()
                self.source.start(trial)
                self._running.add(trial.number)
            moved()
            trial, result = self.source.wait()
            self._running.discard(trial.number)
            self.journal.record(trial, result)
            self._known[trial.number] = (trial, result)

    def run(self, whole: Callable[[], R]) -> tuple[R | Stopped, SpecDebugError | None]:
        """As :func:`until_stopped`, for ``whole`` that calls :meth:`next`; the source is closed whatever happens."""
        try:
            return until_stopped(whole)
        finally:
            self.source.close()
            self._running.clear()

    def _choose_ahead(self, choose: Choose) -> None:
        """Keep enough trials chosen to keep the source busy, and no more."""
        ahead = 2 * self.source.capacity - 1
        while len(self._pending) < ahead and self._chosen < self.max_trials:
            trial = choose(self._chosen, self._pending)
            if trial is None:
                return
            if trial.number in self._known:
                trial = self._known[trial.number][0]
            else:
                self._waiting.append(trial)
            self._pending.append(trial)
            self._chosen += 1

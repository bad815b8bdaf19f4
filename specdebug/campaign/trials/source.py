"""A source of trials runs them: it is all that a search needs to know about commands, commits and scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from specdebug.base.trial import Trial, TrialResult

Work = TypeVar("Work")
Work_in = TypeVar("Work_in", contravariant=True)
End = TypeVar("End", covariant=True)


@dataclass(frozen=True)
class Candidate:
    """A possible cause. ``id`` is what a trial's set holds, ``label`` what a reader is shown."""

    id: str
    label: str


class Runner(Protocol[Work_in, End]):
    """Does pieces of work, several at a time."""

    @property
    def capacity(self) -> int:
        """Return how many may be under way at a time; at least 1."""

    def start(self, work: Work_in, /) -> None:
        """Begin one, fewer than ``capacity`` being under way, and return at once. Raises SpecDebugError when none can
        be done at all."""

    def wait(self) -> End:
        """Return the end of the next to end, at least one being under way. A KeyboardInterrupt passes through."""


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


class TrialSource(Runner[Trial, tuple[Trial, TrialResult]], Protocol):
    """Runs trials, several at a time."""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Return everything that can be switched."""

    @property
    def identity(self) -> str:
        """Return a digest that every node of a cluster must have: of the question, and of files that they share."""

    @property
    def rerun(self) -> int:
        """Return how many trials were lost with their worker, and begun again under the same number."""

    def close(self) -> None:
        """End whatever runs, and clean up. May be called more than once."""


class Origin(Protocol):
    """The thing that the trials of a journal are of."""

    @property
    def question(self) -> str:
        """Return a digest of what is searched, which stays the same when the thing that is searched changes."""

    def state(self) -> dict[str, str]:
        """Return the state of that thing, as in ``trials/state.py``: results belong to it."""

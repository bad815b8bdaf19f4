"""A source of trials runs them: it is all that a search needs to know about commands, commits and scenarios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specdebug.campaign.trials.trial import Trial, TrialResult


@dataclass(frozen=True)
class Candidate:
    """A possible cause. ``id`` is what a trial's set holds, ``label`` what a reader is shown."""

    id: str
    label: str


class Origin(Protocol):
    """The thing that the trials of a journal are of."""

    @property
    def question(self) -> str:
        """Return a digest of what is searched, which stays the same when the thing that is searched changes."""

    def state(self) -> dict[str, str]:
        """Return the state of that thing, as in ``trials/state.py``: results belong to it."""


class TrialSource(Protocol):
    """Runs trials, several at a time."""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Return everything that can be switched."""

    @property
    def identity(self) -> str:
        """Return a digest that every node of a cluster must have: of the question, and of files that they share."""

    @property
    def capacity(self) -> int:
        """Return how many trials may run at a time; at least 1."""

    @property
    def rerun(self) -> int:
        """Return how many trials were lost with their worker, and begun again under the same number."""

    def start(self, trial: Trial) -> None:
        """Begin a trial, fewer than ``capacity`` being under way, and return at once. Raises SpecDebugError when no
        trial can be run at all."""

    def wait(self) -> tuple[Trial, TrialResult]:
        """Return the next trial to end, at least one being under way. A KeyboardInterrupt passes through."""

    def close(self) -> None:
        """End whatever runs, and clean up. May be called more than once."""

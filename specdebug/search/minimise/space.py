"""The search asks its caller for what can be taken away, and to try the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult

C_co = TypeVar("C_co", covariant=True)
R = TypeVar("R", bound=str)

Stopped = Literal["interrupted", "trouble"]


class Stage(Protocol[C_co]):
    """Elements that can be taken away in any combination (dropped, or made smaller)."""

    @property
    def title(self) -> str: ...

    @property
    def labels(self) -> Sequence[str]:
        """Return the elements' names, which together with ``title`` no element of another stage has."""

    def without(self, removed: frozenset[int]) -> C_co | None:
        """Return what is left without these; None where that cannot be."""


class Space(Protocol[C_co]):
    """A thing (``start``) and what can be taken away from it, stage after stage."""

    @property
    def start(self) -> C_co: ...

    def next_stage(self) -> Stage[C_co] | None:
        """Return what to try to take away next, given what ``took`` has reported; None when there is nothing more."""

    def took(self, removed: frozenset[int], confirmed: frozenset[int]) -> None:
        """Take in the end of the latest stage: what is gone, and what is kept because the failure needs it."""


class Trials(Protocol):
    """Makes trials, several at a time, and keeps them, so that a search that was stopped goes on where it was."""

    def run(self, whole: Callable[[], R]) -> tuple[R | Stopped, SpecDebugError | None]:
        """Return what ``whole`` returned, which calls :meth:`next` as often as it likes, or what stopped it; and the
        error, if that was one."""

    def next(self, choose: Callable[[int, Sequence[Trial]], Trial | None]) -> tuple[Trial, TrialResult, bool] | None:
        """Return the next trial that counts, what it showed, and True if it was kept from before; None when nothing is
        left to try, or there may be no more trials. Trials count in the order of their numbers.

        ``choose`` is asked for the trial of a number, given those that were chosen and do not count yet; None if there
        is nothing to try as long as these do not. A trial that was kept takes the place of the chosen one, which may be
        another, where a search with more trials at a time made it.
        """

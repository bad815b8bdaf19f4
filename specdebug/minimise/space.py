"""What the search asks of its caller: what can be taken away, and how the rest is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
C_contra = TypeVar("C_contra", contravariant=True)


@dataclass(frozen=True)
class Seen:
    """What a trial showed: the signature of its failure, None where it did not fail."""

    signature: str | None
    seconds: float = 0.0


class Stage(Protocol[C_co]):
    """Elements that can be taken away in any combination (dropped, or made smaller)."""

    @property
    def title(self) -> str:
        """What the elements are, such as ``requests``."""

    @property
    def labels(self) -> Sequence[str]:
        """Of every element, what it is; unlike those of all other stages together with ``title``."""

    def without(self, removed: frozenset[int]) -> C_co | None:
        """What is left without these; None where that cannot be."""


class Space(Protocol[C_co]):
    """A thing and what can be taken away from it, stage after stage."""

    @property
    def start(self) -> C_co:
        """The whole."""

    def next_stage(self) -> Stage[C_co] | None:
        """What to try to take away next, given what ``took`` has reported; None when there is nothing more."""

    def took(self, removed: frozenset[int], confirmed: frozenset[int]) -> None:
        """The end of the latest stage: what is gone, and what is kept because the failure needs it."""


class Oracle(Protocol[C_contra]):
    """Makes trials, several at a time."""

    @property
    def capacity(self) -> int:
        """How many trials may run at a time; at least 1."""

    def start(self, number: int, candidate: C_contra, seed: int) -> None:
        """Begin trial ``number``."""

    def wait(self) -> tuple[int, Seen]:
        """The next trial to end, whichever it is."""


class TrialMemory(Protocol):
    """Keeps trials, so that a search that was stopped goes on where it was."""

    def recall(self, number: int, gone: frozenset[str], seed: int) -> Seen | None:
        """What this trial showed, if it was made before.

        Raises:
            SpecDebugError: another trial was made at this place.
        """

    def keep(self, number: int, gone: frozenset[str], seed: int, seen: Seen) -> None:
        """Write a trial down."""

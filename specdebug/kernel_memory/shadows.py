"""What a tensor's shadow is asked: it takes in what is stored, and says which loads are not right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from specdebug.kernel_memory.pointers import Plain


@dataclass(frozen=True)
class Misread:
    """A load that a shadow objects to: its kind of finding, how many elements or slots, and what makes the words."""

    kind: str
    count: int
    words: Callable[[], str]


class Shadow(Protocol):
    """The shadow of a tensor, by plain addresses in its memory or beside it, which are left out."""

    def stored(self, addresses: Plain) -> None:
        """A kernel has stored there."""

    def loaded(self, addresses: Plain) -> Misread | None:
        """A kernel loads there; returns what is wrong with that."""

"""A number that may be made smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specdebug.scenario.grammar import Scenario


@dataclass(frozen=True)
class Knob:
    """A number that may be made smaller.

    Attributes:
        label: names it.
        value: what it is now.
        target: what to try.
        turn: gives the scenario with another value of it.
    """

    label: str
    value: int
    target: int
    turn: Callable[[Scenario, int], Scenario]

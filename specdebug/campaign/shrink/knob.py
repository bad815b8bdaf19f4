"""A number that may be made smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specdebug.scenario.grammar import Scenario


@dataclass(frozen=True)
class Knob:
    """A number called ``label`` that may be made smaller: from ``value`` to ``target``, by ``turn``."""

    label: str
    value: int
    target: int
    turn: Callable[[Scenario, int], Scenario]

"""What warm workers are told of arms to come, before the first of them starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdebug.patching.toggles import Toggle
    from specdebug.scenario.grammar import Scenario


@dataclass(frozen=True)
class Common:
    """The share of all the arms to come of a scenario. ``toggles``: the fixes that any of them may revert."""

    scenario: Scenario
    arms: tuple[str, ...]
    toggles: tuple[Toggle, ...]


@dataclass(frozen=True)
class Foreseen:
    """A run that many to come are like: the same requests, served with little difference."""

    scenario: Scenario
    arm: str
    seed: int

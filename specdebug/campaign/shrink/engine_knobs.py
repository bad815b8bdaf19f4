"""Numbers of a written-out scenario's engine that may be made smaller, and options that follow from others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from specdebug.campaign.shrink.knob import Knob
from specdebug.scenario.grammar import Scenario, merge
from specdebug.targets.options import options_of


def engine_knobs(scenario: Scenario) -> Iterator[Knob]:
    """Yield every number of its engine that may be made smaller, ``target`` being the least it may ever be."""
    (arm,) = scenario.arms
    for path, value, least in options_of(scenario.target_of(arm)).numbers(scenario.engine_of(arm)):
        yield Knob(".".join(path), value, least, partial(_turned, path))


def _turned(path: tuple[str, ...], scenario: Scenario, value: int) -> Scenario:
    over: Any = value
    for key in reversed(path):
        over = {key: over}
    return replace(scenario, engine=merge(scenario.engine, over))


def made_consistent(scenario: Scenario) -> Scenario:
    """Return the scenario with the options that follow from others as these are."""
    (arm,) = scenario.arms
    return replace(scenario, engine=options_of(scenario.target_of(arm)).consistent(scenario.engine))

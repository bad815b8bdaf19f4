"""The engine that an arm of a scenario asks for."""

from specdebug.engine.config import EngineConfig
from specdebug.scenario.grammar import Scenario


def config_of(scenario: Scenario, arm: str) -> EngineConfig:
    """The arm's engine options, merged and checked."""
    return EngineConfig.from_dict(scenario.engine_of(arm))

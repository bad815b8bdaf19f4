"""Sources made anew on another machine, for one trial at a time each. What is needed travels; content is read from that
machine's own folders and from ``folders``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.campaign.trials.source import TrialSource
from specdebug.campaign.trials.takes import Takes
from specdebug.scenario.library import Library

if TYPE_CHECKING:
    from specdebug.faults.model import Fault
    from specdebug.scenario.grammar import Scenario


def command_source(
    command: Sequence[str], folders: Sequence[Path], timeout_s: float | None, takes: Takes
) -> TrialSource:
    """Return a command's source. Raises SpecDebugError where it cannot be tried there."""
    from specdebug.campaign.trials.command import CommandSource

    return CommandSource(command, Library(folders).registry, takes=takes, timeout_s=timeout_s)


def fault_source(
    scenario: Scenario, folders: Sequence[Path], arm: str, faults: Sequence[Fault], timeout_s: float | None
) -> TrialSource:
    """Return a source of faults. Raises SpecDebugError where it cannot be tried there."""
    from specdebug.campaign.trials.faults import FaultSource

    return FaultSource(Library(folders), scenario, faults=faults, arm=arm, timeout_s=timeout_s)


def scenario_source(
    scenario: Scenario,
    folders: Sequence[Path],
    arm: str,
    options: Sequence[str],
    timeout_s: float | None,
    takes: Takes,
) -> TrialSource:
    """Return a scenario's source. Raises SpecDebugError where it cannot be tried there."""
    from specdebug.campaign.trials.scenario import ScenarioSource

    return ScenarioSource(Library(folders), scenario, arm=arm, options=options, timeout_s=timeout_s, takes=takes)

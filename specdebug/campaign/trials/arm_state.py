"""The state of an arm of a scenario: of its checkpoint, our own code, and the engine that its target is."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.state import command_state, folder_digest, own_state, packages_state
from specdebug.scenario.checks import asked_of
from specdebug.scenario.grammar import Scenario
from specdebug.targets.registry import find_target
from specdebug.targets.settings import TargetChoice


def arm_state(scenario: Scenario, arm: str) -> dict[str, str]:
    """Return the state that an arm's trials belong to, but for the content of its scenario."""
    state = own_state()
    with contextlib.suppress(SpecDebugError):  # what cannot be is told by the first trial
        model = checkpoint_path(asked_of(scenario, arm).model)
        state[f"checkpoint {model}"] = folder_digest(model)
    return state | engine_state(scenario.target_of(arm))


def engine_state(choice: TargetChoice) -> dict[str, str]:
    """Return the state of an engine that is not ours: the packages of an installed one, or what a command starts."""
    from specdebug.targets.installed import InstalledTarget
    from specdebug.targets.settings import SERVE, LaunchedServer

    if isinstance(choice, LaunchedServer) and choice.command != SERVE:
        with contextlib.suppress(ValueError):
            return command_state(shlex.split(choice.command), Path.cwd())
    target = find_target(choice)
    if isinstance(target, InstalledTarget):
        with contextlib.suppress(SpecDebugError):
            return packages_state(Path(target.installed().python).parent.parent)
    return {}

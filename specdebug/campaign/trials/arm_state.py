"""The state of an arm of a scenario: of its file, its checkpoint, our own code, and the engine that its target is."""

from __future__ import annotations

import contextlib
import json
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path

from specdebug import __version__
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.state import command_state, digest_of, folder_digest, own_state, packages_state
from specdebug.scenario.checks import asked_of
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.packs import ProbePack
from specdebug.targets.registry import find_target
from specdebug.targets.settings import TargetChoice


def arm_question(scenario: Scenario, arm: str) -> tuple[str, ...]:
    """Return what of an arm stays the same when its scenario's file changes: the file, and what is laid over it."""
    over = json.dumps([scenario.overrides, scenario.limits.timeout_s], sort_keys=True)
    return str(Path(scenario.path).resolve()), str(scenario.target_of(arm)), arm, over


def arm_facts(scenario: Scenario, arm: str, packs: Sequence[ProbePack]) -> tuple[str, ...]:
    """Return what an arm's trials depend on beside seed and what is switched on: versions, scenario, packs."""
    return (
        __version__,
        platform.python_version(),  # prompts are cut from its library
        json.dumps([scenario.to_dict(), scenario.overrides], sort_keys=True),
        arm,
        repr([(pack.name, pack.mode, [entry.rule for entry in pack.entries]) for pack in packs]),
    )


def arm_state(scenario: Scenario, arm: str, facts: Sequence[str]) -> dict[str, str]:
    """Return the state that an arm's trials belong to. ``facts``: of the scenario and what is read beside it."""
    state = {f"scenario {scenario.path}": f"#{digest_of(*facts)}", **own_state()}
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

"""``specdebug diverge``."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.cli.options import (
    ArmsOption,
    ContentOptions,
    EngineOptions,
    Faults,
    File,
    Help,
    JsonOptions,
    Reverts,
    RunOptions,
    Seed,
    grouped,
    positive,
)
from specdebug.cli.output import tell
from specdebug.cli.running import progress, workers

if TYPE_CHECKING:
    from specdebug.campaign.loops.replay import ArmRun, Choices
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.library import Library
    from specdebug.targets.settings import TargetChoice


@grouped
@interrupts.held()
def diverge(
    file: File,
    *,
    arm: Annotated[ArmsOption, Help("Name two, or one to run twice; the scenario's first two unless given.")] = None,
    revert: Annotated[Reverts, Help("Revert these fixes as well, in the second arm.")] = None,
    fault: Annotated[Faults, Help("Inject this fault as well, in the second arm.")] = None,
    seed: Seed = None,
    engine: EngineOptions,
    results: JsonOptions,
    runs: RunOptions,
    shared: ContentOptions,
) -> int:
    """Run two arms and name the first step, request, site and tensor in which they differ, with both values.

    ARM@TARGET runs an arm on that target: fixed@sglang==0.5.13, fixed@embedded; or, with --target sglang, fixed@0.5.13.
    What another batch shape does to the last bits is told apart from a fault. Exit code 0 when nothing diverged (but
    for rounding), 1 when something did, 125 when the two cannot be compared.
    """
    results.check()
    with workers(runs.jobs) as pool:
        from specdebug.diverge.run import Diverging
        from specdebug.faults.declare import parse_fault
        from specdebug.patching.toggles import parse_numbers
        from specdebug.report.diverge import divergence_report

        library = shared.library()
        scenario = library.scenario(file)
        changes = replace(
            engine.choices(),
            reverts=tuple(parse_numbers(",".join(revert or ()))),
            faults=tuple(parse_fault(text) for text in fault or ()),
            seed=seed,
            timeout_s=positive(runs.timeout),
        )
        both = _planned(scenario, _two_arms(scenario, arm, changes), changes, library)
        with tempfile.TemporaryDirectory(prefix="specdebug-diverge-") as folder, progress() as watcher:
            answer = Diverging(pool, library, both, Path(folder), watcher).run()
    return tell(divergence_report(scenario.name, answer), results)


def _two_arms(
    scenario: Scenario, named: Sequence[str] | None, changes: Choices
) -> tuple[tuple[str, TargetChoice | None], tuple[str, TargetChoice | None]]:
    """Return the arms to compare, each with its target if it names one. One arm is compared with itself only if the
    second run is changed, or made elsewhere."""
    arms = [_placed(name, scenario, changes) for name in named or list(scenario.arms)[:2]]
    if len(arms) == 1:
        arms *= 2
    if len(arms) != 2 or (arms[0] == arms[1] and not (changes.reverts or changes.faults)):
        known = ", ".join(scenario.arms)
        raise SpecDebugError(
            f"diverge needs two arms, or one and --revert or --fault, or one on two targets (--arm ARM@TARGET); "
            f"{scenario.path} has {known}"
        )
    return arms[0], arms[1]


def _placed(name: str, scenario: Scenario, changes: Choices) -> tuple[str, TargetChoice | None]:
    """Return an arm's name, and the target that is written behind it."""
    from specdebug.targets.settings import ReleasedEngine, parse_target

    arm, at, place = name.partition("@")
    if not at:
        return arm, changes.target
    if place[:1].isdigit():
        of = changes.target or scenario.target_of(arm) if arm in scenario.arms else changes.target
        if not isinstance(of, ReleasedEngine):
            raise SpecDebugError(f"--arm {name}: a version of what? Write {arm}@sglang=={place}, or --target sglang")
        place = f"{of.kind}=={place}"
    return arm, parse_target(place, option="--arm")


def _planned(
    scenario: Scenario,
    arms: tuple[tuple[str, TargetChoice | None], tuple[str, TargetChoice | None]],
    changes: Choices,
    library: Library,
) -> tuple[ArmRun, ArmRun]:
    """Return the first arm as it is, and the second with the changes."""
    from specdebug.campaign.loops import replay as replaying

    (one, on), (other, there) = arms
    (left,) = replaying.plan(scenario, replace(changes, arms=(one,), reverts=(), faults=(), target=on), library)
    (right,) = replaying.plan(scenario, replace(changes, arms=(other,), target=there), library)
    return left, right

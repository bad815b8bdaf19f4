"""``specdebug diverge``."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specdebug import interrupts
from specdebug.cli.options import (
    ArmsOption,
    ContentOptions,
    EngineOptions,
    Faults,
    File,
    JsonOptions,
    Reverts,
    RunOptions,
    Seed,
    positive,
)
from specdebug.cli.output import show
from specdebug.cli.params import Help, grouped
from specdebug.cli.replay import progress, workers
from specdebug.cli.results import tell_results
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.loops.replay import ArmRun, Choices
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.library import Library


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

    What another batch shape does to the last bits is told apart from a fault. Exit code 0 when nothing diverged (but
    for rounding), 1 when something did, 125 when the two cannot be compared.
    """
    results.check()
    with workers(runs.jobs) as pool:
        from specdebug.diverge.run import Diverging
        from specdebug.faults.declare import parse_fault
        from specdebug.report.diverge import divergence_document, render_divergence
        from specdebug.toggles import parse_numbers

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
    name = scenario.name
    tell_results(results, lambda: divergence_document(name, answer), lambda: show(render_divergence(name, answer)))
    return answer.exit_code


def _two_arms(scenario: Scenario, named: Sequence[str] | None, changes: Choices) -> tuple[str, str]:
    """Return the arms to compare. One arm is compared with itself only if the second run is changed."""
    names = list(named or list(scenario.arms)[:2])
    if len(names) == 1:
        names *= 2
    if len(names) != 2 or (names[0] == names[1] and not (changes.reverts or changes.faults)):
        known = ", ".join(scenario.arms)
        raise SpecDebugError(f"diverge needs two arms, or one and --revert or --fault; {scenario.path} has {known}")
    return names[0], names[1]


def _planned(scenario: Scenario, names: tuple[str, str], changes: Choices, library: Library) -> tuple[ArmRun, ArmRun]:
    """Return the first arm as it is, and the second with the changes."""
    from specdebug.loops import replay as replaying

    first = replace(changes, arms=names[:1], reverts=(), faults=())
    (left,) = replaying.plan(scenario, first, library)
    (right,) = replaying.plan(scenario, replace(changes, arms=names[1:]), library)
    return left, right

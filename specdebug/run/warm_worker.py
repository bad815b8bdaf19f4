"""Warm arms, inside their workers: forks of a process that has the engine and its checkpoints already.

The fork server imports the engine and loads what depends on no seed (:func:`prepare`); a worker patches what it
inherited and runs an ordinary arm (:func:`run_warm`), or starts over where an edit cannot be made in process.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.base.errors import SpecDebugError
from specdebug.workers.wire import PipeSink, Sink

if TYPE_CHECKING:
    from specdebug.patching.toggles import Toggle
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.workload import Common, Foreseen

MODEL_CODE = "specdebug.engine.model"
"""Code that has run by the time a worker patches: models made with it are not used once it is patched."""


def prepare(commons: Sequence[Common]) -> None:
    """Called once, in the fork server. Whatever is wrong here is wrong in every worker, which will then say so."""
    import specdebug.engine.textbook.engine
    from specdebug.base.attention_plans import SHIPPED
    from specdebug.engine.attention.backend import planner_class
    from specdebug.patching import PatchError, apply
    from specdebug.patching.live import take_census
    from specdebug.workers.stack import versions

    for plan in SHIPPED:
        for layout in ("mha", "mla"):  # imports it: a worker can patch in process only what it finds imported
            planner_class(plan.name, layout)
    versions()  # reads packages' metadata, which is then known
    for common in commons:
        for arm in common.arms:
            with suppress(SpecDebugError):
                _keep(common.scenario, arm)
    take_census(str(Path(specdebug.engine.__file__).parent))
    for toggle in (each for common in commons for each in common.toggles):
        with suppress(PatchError):
            apply(toggle.patches, "inprocess").restore()  # the texts and trees of its modules are then known


def _keep(scenario: Scenario, arm: str) -> None:
    from specdebug.run.dense import keep_weights
    from specdebug.scenario.text import keep_tokenizer
    from specdebug.scenario.workload import expand
    from specdebug.targets.registry import find_target

    engine, options = find_target(scenario.target_of(arm)), scenario.engine_of(arm)
    tokenizer = keep_tokenizer(engine.asked(options).model)
    engine.warm(options)
    reference = _reference_of(scenario, arm)
    if reference is not None:
        keep_weights(*reference)
    expand(scenario, tokenizer)  # reads the corpus


def _reference_of(scenario: Scenario, arm: str) -> tuple[str, str | None, str | None] | None:
    """Target, draft and algorithm of the reference that judges an arm; None where nothing is compared with one."""
    from specdebug.run.oracles.base import OracleSettings
    from specdebug.targets.registry import find_target

    asked = find_target(scenario.target_of(arm)).asked(scenario.engine_of(arm))
    return OracleSettings(scenario.oracles_of(arm), asked).reference


def foresee(asked: Foreseen) -> None:
    """Called in the fork server, between jobs. What is wrong here is wrong in every worker, which will then say so."""
    from specdebug.run import dense
    from specdebug.scenario.text import load_tokenizer
    from specdebug.scenario.workload import expand

    with suppress(SpecDebugError):
        reference = _reference_of(asked.scenario, asked.arm)
        if reference is None:
            return
        planned = expand(asked.scenario, load_tokenizer(reference[0]), asked.seed).requests
        # A request that continues another has a prompt that is not known yet.
        greedy = [one for one in planned if one.sampling.temperature == 0 and one.continues is None]
        dense.foresee(dense.Names(*reference), [(one.new_ids, one.sampling.max_new_tokens) for one in greedy])


def run_warm(payload: Mapping[str, Any], sink: PipeSink) -> None:
    """Run one arm. ``payload`` is what ``WarmPool.start`` packs."""
    from specdebug.patching import PatchError, apply
    from specdebug.patching.live import end_census
    from specdebug.run.arm import run_arm
    from specdebug.run.session_run import hits_of
    from specdebug.targets.embedded import TARGET
    from specdebug.workers.forkserver import start_over

    if payload["elsewhere"] or "patches" in payload:
        run_cold(payload, sink)
        return
    toggles: tuple[Toggle, ...] = pickle.loads(payload["toggles"])
    patches = [patch for toggle in toggles for patch in toggle.patches]
    try:
        applied = apply(patches, "inprocess")
    except PatchError:
        start_over(f"{__name__}:run_cold", payload, sink)
    end_census()
    if any(patch.module.startswith(MODEL_CODE) for patch in patches):
        TARGET.cool()
    arm = with_workload(payload, sink)
    if arm is not None:
        run_arm(arm, sink, in_place=partial(hits_of, toggles, applied))


def run_cold(payload: Mapping[str, Any], sink: PipeSink) -> None:
    """The same arm in a process that has not imported the engine, has no use for that, or is a home of another."""
    from specdebug.run.arm import run_arm

    arm = with_workload(payload, sink)
    if arm is not None:
        run_arm(arm, sink)


def with_workload(payload: Mapping[str, Any], sink: Sink) -> dict[str, Any] | None:
    """The payload of an ordinary arm, its requests planned; None, and a usage event, when they cannot be. Imports
    nothing of the engine: a worker that has started over must find it not yet imported."""
    from specdebug.scenario.reworked import reworked
    from specdebug.scenario.text import load_tokenizer
    from specdebug.scenario.workload import expand

    scenario: Scenario = pickle.loads(payload["scenario"])
    try:
        workload = expand(scenario, load_tokenizer(payload["model"]), payload["seed"])
    except SpecDebugError as error:
        sink.emit("usage", message=str(error))
        return None
    return {**payload, "workload": pickle.dumps(reworked(payload["rework"], workload))}

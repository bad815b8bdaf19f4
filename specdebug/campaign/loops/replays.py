"""Replay several scenarios at once, with one pool of workers and one answer."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.baseline import Baseline
from specdebug.campaign.loops.last_failed import LastFailed
from specdebug.campaign.loops.left_out import LeftOut, refusal
from specdebug.campaign.loops.replay import (
    ArmRun,
    Choices,
    PlannedRuns,
    Progress,
    Ran,
    Replay,
    RunContent,
    planned,
    run_through,
)
from specdebug.campaign.loops.selection import Expression, names_of
from specdebug.campaign.loops.steplog import Recording
from specdebug.scenario.grammar import Scenario
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.pool import WorkerPool


@dataclass(frozen=True)
class Replays:
    """The results of several scenarios of which an arm has run, or that are not for their target, in the order they
    were named.

    A replay's ``wall_s`` is from its first arm's start to its last one's end, with other scenarios' arms beside them.
    ``missing`` is the number of arms that a signal kept from beginning (``interrupted``), or ``trouble`` from ending:
    a scenario itself is at fault, or no worker could be started.
    """

    replays: tuple[Replay, ...]
    wall_s: float
    missing: int = 0
    interrupted: bool = False
    trouble: SpecDebugError | None = None

    @property
    def exit_code(self) -> int:
        """128 + N after signal N; the trouble's; else the worst of all, where 1 is worse than 125."""
        if self.interrupted:
            return interrupts.exit_code()
        if self.trouble is not None:
            return self.trouble.exit_code
        codes = {replay.exit_code for replay in self.replays}
        return next((code for code in (EXIT_CODES["fail"], EXIT_CODES["unknown"]) if code in codes), 0)


def labels_of(scenarios: Sequence[Scenario]) -> list[str]:
    """Return different names for them: each file's, or its whole path where another file has that name."""
    count = Counter(scenario.path.stem for scenario in scenarios)
    return [path.stem if count[path.stem] == 1 else str(path) for path in (scenario.path for scenario in scenarios)]


def replay_all(
    pool: WorkerPool,
    library: RunContent,
    plans: Sequence[PlannedRuns],
    progress: Progress | None = None,
    recording: Recording | None = None,
    baseline: Baseline | None = None,
) -> Replays:
    """Run all of them until an error stops them. Keys of several scenarios' runs begin with the scenario's label."""
    began = time.monotonic()
    if len(plans) > 1:
        labels = labels_of([each.scenario for each in plans])
        plans = [_labelled(each, label) for label, each in zip(labels, plans, strict=True)]
    ran = run_through(pool, library, [run for each in plans for run in each.runs], progress, recording, baseline)
    wall_s = time.monotonic() - began
    # a signal came before the arm began, or an error before it ended
    lacking = {run.key for each in plans for run in each.runs} - {
        result.run.key for result in ran.results if not result.outcome.interrupted or result.run.key in ran.spans
    }
    if len(plans) == 1:  # it is alone: the interrupt was its own
        (plan,) = plans
        answers = [Replay(plan.scenario, ran.results, wall_s, ran.interrupted, plan.left_out)]
    else:
        every = [_answer(plan, ran) for plan in plans]
        answers = [answer for answer in every if _has_run(answer, lacking) or (answer.left_out and not answer.results)]
    return Replays(tuple(answers), wall_s, len(lacking), ran.interrupted, ran.trouble)


def _labelled(plan: PlannedRuns, label: str) -> PlannedRuns:
    runs = tuple(dataclasses.replace(run, key=f"{label}::{run.key}") for run in plan.runs)
    return dataclasses.replace(plan, runs=runs)


def _has_run(answer: Replay, lacking: Set[str]) -> bool:
    return any(result.run.key not in lacking for result in answer.results)


def _answer(plan: PlannedRuns, ran: Ran) -> Replay:
    """The answer of one of several scenarios."""
    keys = {run.key for run in plan.runs}
    results = tuple(result for result in ran.results if result.run.key in keys)
    spans = [ran.spans[key] for key in keys if key in ran.spans]
    wall_s = max((end for _, end in spans), default=0.0) - min((start for start, _ in spans), default=0.0)
    cut_short = ran.interrupted and any(result.outcome.interrupted for result in results)
    return Replay(plan.scenario, results, wall_s, cut_short, plan.left_out)


def plan_all(
    scenarios: Sequence[Scenario], choices: Choices, library: RunContent, expression: Expression | None = None
) -> list[PlannedRuns]:
    """Return the runs that are chosen and selected, by scenario. Raises as ``replay.planned``, where an
    expression selects no arm, and NotOnTarget where nothing of all that is run."""
    plans = [planned(scenario, choices, library) for scenario in scenarios]
    if expression is not None:
        found = _only(plans, lambda arm: expression.holds(names_of(arm)))
        if not found:
            known = ", ".join(f"{run.scenario.path.stem}::{run.arm}" for each in plans[:3] for run in each.runs)
            more = ", ..." * (len(plans) > 3)
            raise SpecDebugError(f"-k '{expression.text}' selects no arm; there are {known}{more}")
        plans = found
    if not any(each.runs for each in plans):
        raise refusal([arm for each in plans for arm in each.left_out])
    return plans


def only_failed(plans: Sequence[PlannedRuns], record: LastFailed) -> tuple[list[PlannedRuns], str]:
    """Return the plans of arms that are recorded as failed, or all plans if none is, and words for that."""
    failed = _only(plans, lambda arm: isinstance(arm, ArmRun) and record.has(arm))
    count = sum(len(each.runs) for each in failed)
    if count:
        return failed, f"running {count} {'arm' if count == 1 else 'arms'} that failed last time"
    others = sum(map(len, record.arms.values()))
    why = f"none of these is among the {others} recorded failures" if others else "no failure is recorded here"
    return list(plans), f"{why}; running all"


def _only(plans: Sequence[PlannedRuns], wanted: Callable[[ArmRun | LeftOut], bool]) -> list[PlannedRuns]:
    kept = [
        PlannedRuns(each.scenario, tuple(filter(wanted, each.runs)), tuple(filter(wanted, each.left_out)))
        for each in plans
    ]
    return [each for each in kept if each.runs or each.left_out]

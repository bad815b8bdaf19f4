"""Replay several scenarios at once, with one pool of workers and one answer."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.baseline import Baseline
from specdebug.campaign.loops.last_failed import LastFailed
from specdebug.campaign.loops.left_out import LeftOut, refusal
from specdebug.campaign.loops.replay import (
    ArmResult,
    ArmRun,
    Choices,
    PlannedRuns,
    Progress,
    Replay,
    RunContent,
    planned,
    run_arms,
)
from specdebug.campaign.loops.selection import Expression, names_of
from specdebug.campaign.loops.steplog import Recording
from specdebug.scenario.grammar import Scenario
from specdebug.verdict.ledger import Ledger
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
    kept = _Kept(progress)
    interrupted, trouble = False, None
    try:
        every = [run for each in plans for run in each.runs]
        results, interrupted = run_arms(pool, library, every, kept, recording, baseline)
        kept.results = {result.run.key: result for result in results}
    except SpecDebugError as error:
        trouble = error
    wall_s = time.monotonic() - began
    answers = [_answer(plan, kept, interrupted, wall_s if len(plans) == 1 else None) for plan in plans]
    missing = sum(kept.lacks(run) for each in plans for run in each.runs)
    ran = tuple(answer for answer in answers if len(plans) == 1 or kept.tells_of(answer))
    return Replays(ran, wall_s, missing, interrupted, trouble)


def _labelled(plan: PlannedRuns, label: str) -> PlannedRuns:
    runs = tuple(dataclasses.replace(run, key=f"{label}::{run.key}") for run in plan.runs)
    return dataclasses.replace(plan, runs=runs)


def _answer(plan: PlannedRuns, kept: _Kept, interrupted: bool, wall_s: float | None) -> Replay:
    scenario = plan.scenario
    results = tuple(kept.results[run.key] for run in plan.runs if run.key in kept.results)
    if wall_s is not None:  # it is alone: the interrupt was its own
        return Replay(scenario, results, wall_s, interrupted, plan.left_out)
    spans = [kept.spans[result.run.key] for result in results if result.run.key in kept.spans]
    span = max((end for _, end in spans), default=0.0) - min((start for start, _ in spans), default=0.0)
    cut_short = interrupted and any(result.outcome.interrupted for result in results)
    return Replay(scenario, results, span, cut_short, plan.left_out)


@dataclass
class _Kept:
    """Keeps the results and times of arms, and passes everything on to another watcher."""

    progress: Progress | None
    results: dict[str, ArmResult] = field(default_factory=dict)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)

    def lacks(self, run: ArmRun) -> bool:
        """Return True if a signal came before the arm began, or an error before it ended."""
        result = self.results.get(run.key)
        return result is None or (result.outcome.interrupted and run.key not in self.spans)

    def tells_of(self, answer: Replay) -> bool:
        """Return True if an arm of a scenario has run, or none was to."""
        return any(not self.lacks(each.run) for each in answer.results) or (
            not answer.results and answer.left_out != ()
        )

    def arm_started(self, run: ArmRun) -> None:
        now = time.monotonic()
        self.spans[run.key] = (now, now)
        if self.progress is not None:
            self.progress.arm_started(run)

    def arm_moved(self, run: ArmRun, ledger: Ledger) -> None:
        if self.progress is not None:
            self.progress.arm_moved(run, ledger)

    def arm_ended(self, result: ArmResult) -> None:
        self.results[result.run.key] = result
        self.spans[result.run.key] = (self.spans[result.run.key][0], time.monotonic())
        if self.progress is not None:
            self.progress.arm_ended(result)

    def waiting(self) -> None:
        if self.progress is not None:
            self.progress.waiting()

    def notice(self, text: str) -> None:
        if self.progress is not None:
            self.progress.notice(text)


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

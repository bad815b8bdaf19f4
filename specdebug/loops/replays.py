"""Replay several scenarios at once, with one pool of workers and one answer."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specdebug import interrupts
from specdebug.errors import SpecDebugError
from specdebug.loops.baseline import Baseline
from specdebug.loops.last_failed import LastFailed
from specdebug.loops.replay import ArmResult, ArmRun, Choices, Progress, Replay, RunContent, plan, run_arms
from specdebug.loops.selection import Expression, names_of
from specdebug.loops.steplog import Recording
from specdebug.scenario.grammar import Scenario
from specdebug.verdict.ledger import Ledger
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.pool import WorkerPool

Plan = tuple[Scenario, Sequence[ArmRun]]
"""A scenario and its runs."""


class NothingSelected(SpecDebugError):
    """An expression selects none of the arms there are."""


@dataclass(frozen=True)
class Replays:
    """The results of several scenarios of which an arm has run, in the order they were named.

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
    plans: Sequence[Plan],
    progress: Progress | None = None,
    recording: Recording | None = None,
    baseline: Baseline | None = None,
) -> Replays:
    """Run all of them until an error stops them. Keys of several scenarios' runs begin with the scenario's label."""
    began = time.monotonic()
    if len(plans) > 1:
        labels = labels_of([scenario for scenario, _ in plans])
        plans = [
            (scenario, [dataclasses.replace(run, key=f"{label}::{run.key}") for run in runs])
            for label, (scenario, runs) in zip(labels, plans, strict=True)
        ]
    kept = _Kept(progress)
    interrupted, trouble = False, None
    try:
        every = [run for _, runs in plans for run in runs]
        results, interrupted = run_arms(pool, library, every, kept, recording, baseline)
        kept.results = {result.run.key: result for result in results}
    except SpecDebugError as error:
        trouble = error
    wall_s = time.monotonic() - began
    answers = [_answer(plan, kept, interrupted, wall_s if len(plans) == 1 else None) for plan in plans]
    missing = sum(kept.lacks(run) for _, runs in plans for run in runs)
    ran = tuple(
        answer for answer in answers if len(plans) == 1 or any(not kept.lacks(result.run) for result in answer.results)
    )
    return Replays(ran, wall_s, missing, interrupted, trouble)


def _answer(plan: Plan, kept: _Kept, interrupted: bool, wall_s: float | None) -> Replay:
    scenario, runs = plan
    results = tuple(kept.results[run.key] for run in runs if run.key in kept.results)
    if wall_s is not None:  # it is alone: the interrupt was its own
        return Replay(scenario, results, wall_s, interrupted)
    spans = [kept.spans[result.run.key] for result in results if result.run.key in kept.spans]
    span = max((end for _, end in spans), default=0.0) - min((start for start, _ in spans), default=0.0)
    cut_short = interrupted and any(result.outcome.interrupted for result in results)
    return Replay(scenario, results, span, cut_short)


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
) -> list[Plan]:
    """Return the runs that are chosen and selected, by scenario. Raises as ``replay.plan``, and NothingSelected."""
    plans = [(scenario, plan(scenario, choices, library)) for scenario in scenarios]
    if expression is None:
        return list(plans)
    kept = _only(plans, lambda run: expression.holds(names_of(run)))
    if not kept:
        known = ", ".join(f"{run.scenario.path.stem}::{run.arm}" for _, runs in plans[:3] for run in runs)
        raise NothingSelected(f"-k '{expression.text}' selects no arm; there are {known}{', ...' * (len(plans) > 3)}")
    return kept


def only_failed(plans: Sequence[Plan], record: LastFailed) -> tuple[list[Plan], str]:
    """Return the plans of arms that are recorded as failed, or all plans if none is, and words for that."""
    failed = _only(plans, record.has)
    count = sum(len(runs) for _, runs in failed)
    if count:
        return failed, f"running {count} {'arm' if count == 1 else 'arms'} that failed last time"
    others = sum(map(len, record.arms.values()))
    why = f"none of these is among the {others} recorded failures" if others else "no failure is recorded here"
    return list(plans), f"{why}; running all"


def _only(plans: Sequence[Plan], wanted: Callable[[ArmRun], bool]) -> list[Plan]:
    kept = [(scenario, [run for run in runs if wanted(run)]) for scenario, runs in plans]
    return [(scenario, runs) for scenario, runs in kept if runs]

"""Run arms of a scenario, each in its own worker, and say whether what happened is what should have.

Pure coordination: this side never imports torch, so nothing a worker does can hurt it. ``plan`` turns a
scenario and the command line's choices into arm runs, ``run_arms`` runs any list of those (of one scenario
or of many), and ``Replay`` is the answer.
"""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from specdebug.errors import SpecDebugError, did_you_mean
from specdebug.harness.ledger import Ledger
from specdebug.harness.outcome import EXIT_CODES, Outcome
from specdebug.harness.scenario_model import Arm, Expectation, ProbeMode, Scenario
from specdebug.targets.pool import Job, WorkerEnd, WorkerPool

TARGET = "specdebug.harness.arm:run_arm"


class ReplayError(SpecDebugError):
    """A replay was asked for something the scenario does not have."""


@dataclass(frozen=True)
class Choices:
    """What the command line may say beside the file."""

    arms: tuple[str, ...] = ()
    reverts: tuple[int, ...] = ()
    seed: int | None = None
    mode: ProbeMode | None = None
    probes: tuple[str, ...] | None = None
    timeout_s: float | None = None
    content: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the answer is the arms' plain verdict rather than whether they met their expectations."""
        return bool(self.arms or self.reverts)


@dataclass(frozen=True)
class ArmRun:
    """One arm to run. ``key`` names it among the runs it is run with; ``reverts`` is the arm's own and any
    more."""

    key: str
    scenario: Scenario
    arm: str
    reverts: tuple[int, ...]
    seed: int
    expectation: Expectation | None = None
    content: tuple[str, ...] = ()

    def job(self) -> Job:
        """The worker's job. The scenario is pickled apart: unpickling imports code that a revert may
        change."""
        limits = self.scenario.limits
        payload = {
            "reverts": list(self.reverts),
            "content": list(self.content),
            "arm": self.arm,
            "seed": self.seed,
            "scenario": pickle.dumps(self.scenario),
        }
        return Job(self.key, TARGET, payload, limits.timeout_s, float(limits.memory_mb))


@dataclass(frozen=True)
class ArmResult:
    """What became of an arm run; ``met`` is None where nothing was expected."""

    run: ArmRun
    outcome: Outcome

    @property
    def met(self) -> bool | None:
        if self.run.expectation is None:
            return None
        return self.run.expectation.met_by(self.outcome.verdict, self.outcome.signature)


@dataclass(frozen=True)
class Replay:
    """All results of one replay."""

    scenario: Scenario
    results: tuple[ArmResult, ...]
    wall_s: float
    plain: bool

    @property
    def exit_code(self) -> int:
        """Plain: the worst verdict's code, fail before unknown before pass. Else 0 when every arm met its
        expectation, 1 when one was contradicted, 125 when those that did not only came to no verdict."""
        verdicts = [r.outcome.verdict for r in self.results if self.plain or not r.met]
        if "fail" in verdicts or (not self.plain and "pass" in verdicts):
            return EXIT_CODES["fail"]
        return EXIT_CODES["unknown"] if "unknown" in verdicts else EXIT_CODES["pass"]


def plan(scenario: Scenario, choices: Choices) -> list[ArmRun]:
    """The arm runs that the choices ask for. Raises ReplayError for an arm the scenario does not have."""
    for name in choices.arms:
        if name not in scenario.arms:
            raise ReplayError(f"{scenario.path}: no arm '{name}'{did_you_mean(name, scenario.arms)}")
    names = list(dict.fromkeys(choices.arms)) or list(scenario.arms)
    if choices.reverts and not choices.arms:
        names = names[:1]
    seed = scenario.seed if choices.seed is None else choices.seed
    changed = _with_choices(scenario, choices)
    return [
        ArmRun(
            key=name,
            scenario=changed,
            arm=name,
            reverts=tuple(dict.fromkeys((*scenario.arms[name].revert, *choices.reverts))),
            seed=seed,
            expectation=None if choices.plain else scenario.expect.get(name),
            content=choices.content,
        )
        for name in names
    ]


def _with_choices(scenario: Scenario, choices: Choices) -> Scenario:
    """The scenario as the choices change it: they go over what the file and its arms say."""

    def changed(arm: Arm) -> Arm:
        return dataclasses.replace(
            arm,
            mode=choices.mode or arm.mode,
            probes=arm.probes if choices.probes is None else choices.probes,
        )

    limits = scenario.limits
    if choices.timeout_s is not None:
        limits = dataclasses.replace(limits, timeout_s=choices.timeout_s)
    arms = {name: changed(arm) for name, arm in scenario.arms.items()}
    return dataclasses.replace(scenario, arms=arms, limits=limits)


class Progress(Protocol):
    """Who watches runs while they run."""

    def arm_started(self, run: ArmRun) -> None: ...

    def arm_moved(self, run: ArmRun, ledger: Ledger) -> None: ...

    def arm_ended(self, result: ArmResult) -> None: ...


@dataclass
class _Running:
    """Collects what workers report, by job name."""

    runs: dict[str, ArmRun]
    progress: Progress | None
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    results: dict[str, ArmResult] = field(default_factory=dict)

    def started(self, job: Job) -> None:
        self.ledgers[job.name] = Ledger()
        if self.progress is not None:
            self.progress.arm_started(self.runs[job.name])

    def event(self, job: Job, event: dict[str, Any]) -> None:
        ledger = self.ledgers[job.name]
        ledger.fold(event)
        if ledger.usage_error is not None:
            raise ReplayError(ledger.usage_error)
        if self.progress is not None:
            self.progress.arm_moved(self.runs[job.name], ledger)

    def ended(self, job: Job, end: WorkerEnd) -> None:
        ledger = self.ledgers.setdefault(job.name, Ledger())
        result = ArmResult(self.runs[job.name], ledger.outcome(end))
        self.results[job.name] = result
        if self.progress is not None:
            self.progress.arm_ended(result)


class Interrupted(Exception):
    """Ctrl-C during a run; carries the results known by then, unfinished arms among them as ``unknown``."""

    def __init__(self, results: tuple[ArmResult, ...]) -> None:
        super().__init__("interrupted")
        self.results = results


def run_arms(pool: WorkerPool, runs: Sequence[ArmRun], progress: Progress | None = None) -> list[ArmResult]:
    """Run them all; results come in the order of ``runs``, whose keys must differ.

    Raises Interrupted on Ctrl-C, and ReplayError when a worker finds the scenario itself at fault.
    """
    running = _Running({run.key: run for run in runs}, progress)
    try:
        pool.run([run.job() for run in runs], running)
    except KeyboardInterrupt:
        raise Interrupted(tuple(_in_order(runs, running.results))) from None
    return _in_order(runs, running.results)


def _in_order(runs: Iterable[ArmRun], results: dict[str, ArmResult]) -> list[ArmResult]:
    return [results[run.key] for run in runs if run.key in results]


def replay(
    pool: WorkerPool, scenario: Scenario, choices: Choices, progress: Progress | None = None
) -> Replay:
    """Run what ``choices`` asks of a scenario."""
    began = time.monotonic()
    results = run_arms(pool, plan(scenario, choices), progress)
    return Replay(scenario, tuple(results), time.monotonic() - began, choices.plain)

"""The options of ``specdebug bisect``, in groups, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.trials.command import Takes
from specdebug.cli.options import (
    MAX_TRIALS,
    TRIALS_AT_A_TIME,
    ArmOption,
    Confidence,
    Executor,
    ExecutorOption,
    Faults,
    Help,
    RayAddress,
    ScenarioOrCommand,
    SignatureOption,
    TakesOption,
    TrialSeed,
    TrialTimeout,
    check_cluster,
)


class Over(StrEnum):
    """The kind of thing that may be the cause."""

    TOGGLES = "toggles"
    CONFIG = "config"
    FAULTS = "faults"
    COMMITS = "commits"


@dataclass(frozen=True)
class BisectSubject:
    """The thing that fails, and the kind of its cause. Without a scenario it is the command after ``--``."""

    scenario: ScenarioOrCommand = None
    over: Annotated[Over, typer.Option("--over", help="What may be the cause.")] = Over.TOGGLES


@dataclass(frozen=True)
class BisectBudget:
    """The confidence of the answer, and the trials there may be, at all, where, and at a time."""

    confidence: Annotated[Confidence, Help("Name a culprit at this probability (0.95, 95%).")] = "95%"
    jobs: Annotated[
        int | None, TRIALS_AT_A_TIME, Help("Trials at a time: of a command 1, of a scenario a core each.")
    ] = None
    executor: ExecutorOption = Executor.LOCAL
    ray_address: RayAddress = None
    seed: Annotated[TrialSeed, Help("Of the trials' seeds, and of ties.")] = 0
    max_trials: Annotated[int, MAX_TRIALS, Help("Stop undecided after so many.")] = 1000
    timeout: TrialTimeout = None


@dataclass(frozen=True)
class Suspects:
    """The suspects in the thing that runs, and the failures to follow."""

    arm: Annotated[
        ArmOption, Help("Of the scenario; the first that reverts nothing, over faults that declares some.")
    ] = None
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="Over config: an engine option to suspect (repeatable)."),
    ] = None
    fault: Annotated[Faults, Help("Over faults: one to suspect beside those that the arm declares (repeatable).")] = (
        None
    )
    good: Annotated[str | None, typer.Option("--good", metavar="REV", help="Over commits: where it does not fail.")] = (
        None
    )
    bad: Annotated[str | None, typer.Option("--bad", metavar="REV", help="Over commits: where it does; HEAD.")] = None
    repo: Annotated[
        Path | None, typer.Option("--repo", metavar="DIR", help="Over commits: the repository; this folder's.")
    ] = None
    build: Annotated[
        str | None, typer.Option("--build", metavar="CMD", help="Over commits: run in a shell after each checkout.")
    ] = None

    takes: TakesOption = Takes.ONE
    signature: Annotated[
        SignatureOption, Help("Follow these failures; else what the scenario expects, or the most frequent.")
    ] = None


def check_together(subject: BisectSubject, budget: BisectBudget, suspects: Suspects) -> None:
    """Raise SpecDebugError for an option that is of no use beside the others."""
    over = subject.over
    own = {Over.COMMITS: ("good", "bad", "repo", "build"), Over.CONFIG: ("option",), Over.FAULTS: ("fault",)}
    unwanted = (name for kind, names in own.items() if kind is not over for name in names)
    for name in unwanted:
        if getattr(suspects, name) is not None:
            raise SpecDebugError(f"--{name} is of no use with --over {over.value}")
    if suspects.takes is Takes.SET and over is not Over.TOGGLES:
        raise SpecDebugError(f"--takes is of no use with --over {over.value}")
    if suspects.arm is not None and subject.scenario is None:
        raise SpecDebugError("--arm is for scenarios")
    check_cluster(budget.executor, budget.ray_address)
    if over is Over.COMMITS and budget.executor is Executor.RAY:
        raise SpecDebugError("--over commits runs where its worktrees are, on this machine; leave out --executor ray")

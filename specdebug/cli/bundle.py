"""``specdebug bundle``."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug.base import interrupts
from specdebug.base.errors import CannotRunHere
from specdebug.cli.options import (
    ArmOption,
    ContentOptions,
    EngineOptions,
    Faults,
    File,
    Help,
    JsonOptions,
    Reverts,
    Seed,
    Timeout,
    grouped,
    numbers_of,
    positive,
)
from specdebug.cli.output import answer, show_report, tell
from specdebug.cli.running import progress, workers

if TYPE_CHECKING:
    from specdebug.bundle.run import Traced
    from specdebug.campaign.loops.replay import ArmRun, Replay
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.library import Library


@dataclass(frozen=True)
class BundleSubject:
    """The arm to run, with what else is done to it, and where the bundle goes."""

    file: File
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.specdebug", help="Where to write it.")]
    arm: Annotated[ArmOption, Help("Of the scenario; its first unless given.")] = None
    revert: Reverts = None
    fault: Faults = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False
    seed: Seed = None


@grouped
@interrupts.held()
def bundle(
    *,
    subject: BundleSubject,
    engine: EngineOptions,
    results: JsonOptions,
    timeout: Timeout = None,
    shared: ContentOptions,
) -> int:
    """Run an arm and write all that it takes to run it elsewhere into one file, for `specdebug replay`.

    Exit code 0 when the bundle is written, whatever the arm's verdict; that is printed, and is what replaying gives.
    """
    from specdebug.bundle.archive import check_target

    check_target(subject.output, subject.force)
    results.check()
    began = time.monotonic()
    with workers(1) as pool:
        from specdebug.bundle.run import run_traced
        from specdebug.campaign.loops.replay import Replay

        library = shared.library()
        scenario, run = _planned(library, subject, engine, timeout)
        with progress() as watcher:
            traced = run_traced(pool, library, run, watcher)
    if traced is None:
        return interrupts.exit_code()
    if traced.result.outcome.unavailable:
        raise CannotRunHere(f"no bundle written: {traced.result.outcome.detail}")
    replayed = Replay(scenario, (traced.result,), time.monotonic() - began, traced.interrupted)
    return _tell(replayed, traced, library, run, subject, results)


def _planned(
    library: Library, subject: BundleSubject, engine: EngineOptions, timeout: float | None
) -> tuple[Scenario, ArmRun]:
    """Return the scenario of the file, and the run."""
    from specdebug.campaign.loops import replay as replaying
    from specdebug.faults.declare import parse_fault

    scenario = library.scenario(subject.file)
    choices = replace(
        engine.choices(),
        arms=(subject.arm or next(iter(scenario.arms)),),
        reverts=numbers_of(subject.revert),
        faults=tuple(parse_fault(text) for text in subject.fault or ()),
        seed=subject.seed,
        timeout_s=positive(timeout),
    )
    (run,) = replaying.plan(scenario, choices, library)
    return scenario, run


def _tell(
    replayed: Replay, traced: Traced, library: Library, run: ArmRun, subject: BundleSubject, results: JsonOptions
) -> int:
    """Tell the run's results, write the bundle unless a signal cut the run short, and return the exit code."""
    from specdebug.bundle.content import write_bundle
    from specdebug.bundle.run import versions_here
    from specdebug.report.parts import Line
    from specdebug.report.replay import replay_report

    report = replay_report(replayed)
    if traced.interrupted:
        return answer(results.as_json, report)
    output = subject.output
    requests = library.workload(run.scenario, run.arm, run.seed)
    here = versions_here(traced.result.outcome.stack)
    try:
        if not results.as_json:
            show_report(report)
    finally:  # also where stdout is gone
        write_bundle(output, traced, requests, here, report.document, subject.force)
        size = output.stat().st_size
        said = f"wrote {output} ({size / 1024:.0f} KiB); specdebug replay {output} runs it again"
        bundled = {**report.document, "bundle": {"path": str(output), "bytes": size}}
        tell(replace(report, command="bundle", document=bundled, parts=[Line(said, fold=False)]), results)
    return 0

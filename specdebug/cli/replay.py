"""``specdebug replay``, and what other commands that run arms share with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.bundle import ENDING
from specdebug.cli import complete
from specdebug.cli.options import (
    ArmsOption,
    BaselineOptions,
    ContentOptions,
    EngineOptions,
    Faults,
    NoLocate,
    ReplayResults,
    Reverts,
    RunOptions,
    Seed,
    named_on_command_line,
    numbers_of,
    positive,
)
from specdebug.cli.output import on_stderr
from specdebug.cli.params import Help, grouped
from specdebug.cli.replay_scenarios import check_several, plan_named, run_plans
from specdebug.cli.results import tell_replay

if TYPE_CHECKING:
    from specdebug.report.progress import LiveProgress, PlainProgress
    from specdebug.scenario.library import Library
    from specdebug.workers.pool import WorkerPool


class Mode(StrEnum):
    """The reaction of a probe that finds something: it ends the run, or writes it down."""

    ASSERT = "assert"
    RECORD = "record"


@dataclass(frozen=True)
class ArmChoices:
    """The choice of arms to run, and the changes made to them."""

    arm: Annotated[ArmsOption, Help("Run this arm only (repeatable); the exit code is its plain verdict.")] = None
    revert: Annotated[
        Reverts, Help("Revert these fixes as well, in the named arm or the first; exit code: its verdict.")
    ] = None
    fault: Annotated[
        Faults,
        Help("Inject this fault as well (repeatable), in the named arm or the first; exit code: its verdict."),
    ] = None
    keyword: Annotated[
        str | None,
        typer.Option("-k", metavar="EXPR", help="Arms whose scenario's or own name fits, as in 'cache and not zero'."),
    ] = None
    last_failed: Annotated[
        bool, typer.Option("--lf", "--last-failed", help="Only arms that failed here when they last ran; else all.")
    ] = False
    seed: Seed = None
    mode: Annotated[Mode | None, typer.Option("--mode", help="Of every probe, over the packs'.")] = None
    probes: Annotated[
        list[str] | None,
        typer.Option(
            "--probes", metavar="PACK", help="Probe packs instead of the scenario's.", autocompletion=complete.packs
        ),
    ] = None


@grouped
@interrupts.held()
def replay(
    ctx: typer.Context,
    *,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...",
            help="Scenario files, names of shipped ones, folders of scenarios; or one bundle.",
            autocompletion=complete.replayed,
        ),
    ] = None,
    chosen: ArmChoices,
    engine: EngineOptions,
    no_locate: NoLocate = False,
    results: ReplayResults,
    baselines: BaselineOptions,
    trust: Annotated[
        bool, typer.Option("--trust", help="Of a bundle: run its code, commands and whatever else it asks for.")
    ] = False,
    runs: RunOptions,
    shared: ContentOptions,
) -> int:
    """Run scenarios' arms, each in a process of its own, and say what broke where.

    Exit code 0 when every arm did what its scenario expects of it, 1 when one did not, 125 when one came to
    no verdict (of several scenarios the worst: 1 before 125 before 0). With --arm, --revert, --fault or
    SGLANG_DEBUG_REVERT_PR: the arm's own verdict, 0 pass, 1 fail, 125 unknown; so, too, for a bundle
    (FILE.specdebug), of which it is said whether it came out as recorded.
    """
    named = list(files or ())
    if bundles := [name for name in named if name.endswith(ENDING)]:
        if len(named) > 1:
            raise SpecDebugError(f"{bundles[0]}: a bundle is replayed by itself, as it was recorded")
        return _replay_bundle(ctx, bundles[0], runs.timeout, results, None if trust else shared.library())
    if trust:
        raise SpecDebugError("--trust is for bundles; a scenario's toggles are yours")
    return _replay_scenarios(named, chosen, engine, results, baselines, runs, shared.library(), locate=not no_locate)


def _replay_scenarios(
    named: list[str],
    chosen: ArmChoices,
    engine: EngineOptions,
    results: ReplayResults,
    baselines: BaselineOptions,
    runs: RunOptions,
    library: Library,
    *,
    locate: bool,
) -> int:
    if not named and not chosen.last_failed:
        raise SpecDebugError("replay needs a FILE: a scenario file, a shipped scenario's name, a folder or a bundle")
    several = len(named) != 1 or library.is_folder(named[0])
    check_several(results) if several else results.check()
    with workers(runs.jobs) as pool:
        from specdebug.faults.declare import parse_fault

        choices = replace(
            engine.choices(),
            arms=tuple(chosen.arm or ()),
            reverts=numbers_of(chosen.revert),
            faults=tuple(parse_fault(text) for text in chosen.fault or ()),
            seed=chosen.seed,
            mode=chosen.mode.value if chosen.mode is not None else None,
            probes=tuple(chosen.probes) if chosen.probes else None,
            timeout_s=positive(runs.timeout),
        )
        if baselines.save_baseline is not None and (choices.reverts or choices.faults):
            raise SpecDebugError("--save-baseline is of sound runs; it does not go with reverts and faults")
        plans = plan_named(library, named, choices, chosen.keyword, last_failed=chosen.last_failed)
        return run_plans(pool, library, plans, progress(), results, baselines, several=several, locate=locate)


def _refuse_changes(ctx: typer.Context, file: str) -> None:
    """Raise SpecDebugError for an option or variable that would make the bundle's run another one."""
    from specdebug.patching.toggles import REVERT_VARIABLE

    options = [field.name for field in (*fields(ArmChoices), *fields(EngineOptions), *fields(BaselineOptions))]
    if flag := named_on_command_line(ctx, options):
        raise SpecDebugError(f"{file}: a bundle is replayed as recorded; {flag} does not go with it")
    if os.environ.get(REVERT_VARIABLE):
        raise SpecDebugError(f"{file}: a bundle is replayed as recorded; unset {REVERT_VARIABLE}")


def _replay_bundle(
    ctx: typer.Context, file: str, timeout: float | None, results: ReplayResults, library: Library | None
) -> int:
    """Run a bundle again, and return the exit code: one that asks for no more than ``library`` has, if there is one."""
    from specdebug.bundle.again import run_again
    from specdebug.bundle.content import read_bundle

    results.check()
    _refuse_changes(ctx, file)
    timeout_s = positive(timeout)
    bundle = read_bundle(file, None if library is None else library.all_toggles())
    recording = results.recording()
    with workers(1) as pool, progress() as watcher:
        again = run_again(pool, bundle, timeout_s, watcher, recording)
    return tell_replay(again.replay, results, recording, again)


@contextmanager
def workers(jobs: int) -> Iterator[WorkerPool]:
    """Start workers, which get ready while the caller reads and checks their work."""
    from specdebug.run.preload import PRELOAD
    from specdebug.workers.pool import WorkerPool

    with WorkerPool(jobs, PRELOAD) as pool:
        pool.start()
        yield pool


def progress() -> AbstractContextManager[LiveProgress | PlainProgress]:
    """Return the display of runs on stderr."""
    from specdebug.report.progress import progress_on

    return on_stderr(progress_on)

"""``specdebug hunt``."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug.base import interrupts
from specdebug.cli.options import (
    ContentOptions,
    Executor,
    ExecutorOption,
    Help,
    InDtype,
    JsonOptions,
    OnDevice,
    OnTarget,
    RayAddress,
    ResumeAnyway,
    Reverts,
    check_cluster,
    engine_overrides,
    engine_words,
    grouped,
    numbers_of,
    positive,
)
from specdebug.cli.output import note, tell
from specdebug.cli.running import gone_on, progress, workers
from specdebug.verdict.outcome import EXIT_CODES
from specdebug.workers.records import RecordError

if TYPE_CHECKING:
    from specdebug.apps.hunt.evidence import SeenFailure
    from specdebug.apps.hunt.hunting import Hunt
    from specdebug.apps.hunt.record import HuntRecord
    from specdebug.base.errors import SpecDebugError
    from specdebug.campaign.trials.campaign import TrialSource
    from specdebug.report.hunt import HuntAnswer
    from specdebug.scenario.library import Library
    from specdebug.targets.settings import TargetChoice


@dataclass(frozen=True)
class HuntSearch:
    """The engine, the scenarios to draw, and the folder that remembers them."""

    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Remembers the hunt; has its findings.")]
    target: OnTarget = None
    device: OnDevice = None
    dtype: InDtype = None
    count: Annotated[int, typer.Option("--count", min=1, help="Scenarios to draw, those of before included.")] = 200
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draw other scenarios.")] = 0
    revert: Annotated[Reverts, Help("Take these fixes out of the engine, to see what a hunt makes of it.")] = None
    max_time: Annotated[
        float | None, typer.Option("--max-time", metavar="SECONDS", help="Begin no scenario after so long.")
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Scenarios at a time: 1, of a cluster as many as it has CPUs."),
    ] = None
    executor: ExecutorOption = Executor.LOCAL
    ray_address: RayAddress = None
    small: Annotated[
        int, typer.Option("--small", metavar="TRIALS", min=0, help="Trials to make each new failure small; 0: none.")
    ] = 24

    resume_anyway: ResumeAnyway = False

    @property
    def engine(self) -> dict[str, str | int]:
        """The options that every engine has. Raises SpecDebugError for a device that is none."""
        return engine_overrides(self.device, self.dtype, None)


@grouped
@interrupts.held()
def hunt(search: HuntSearch, results: JsonOptions, shared: ContentOptions) -> int:
    """Draw scenarios for an engine, judge each with every oracle, and make small what fails.

    Page sizes, trees, steps, chunks, cache hits, aborts, retraction, graph sizes, memory pressure, stops and sampling
    are drawn from the seed. The same command goes on where it was stopped; a larger --count goes further. Of each
    failure DIR has a scenario, a bundle that `specdebug replay` repeats, and a page to paste upstream.

    Exit code 0 when nothing failed, 1 when something did, 125 when nothing could be judged.
    """
    from specdebug.apps.hunt.hunting import Hunt, HuntRunner
    from specdebug.report.hunt import HuntAnswer
    from specdebug.targets.registry import find_target
    from specdebug.targets.settings import parse_target

    results.check()
    check_cluster(search.executor, search.ray_address)
    until = float("inf") if positive(search.max_time) is None else time.monotonic() + float(search.max_time or 0)
    target, reverts = parse_target(search.target or "embedded"), numbers_of(search.revert)
    find_target(target)
    library, jobs = shared.library(), search.jobs or 1
    with _record(search, target, reverts, library) as record:
        answer = HuntAnswer(record, str(target), search.seed, _words(search), {}, {}, reverts)
        trouble: SpecDebugError | None = None
        with workers(1 if search.executor is Executor.RAY else jobs) as pool:
            runner = HuntRunner(pool, library, target, search.seed, reverts, None, search.engine, jobs)
            hunting = Hunt(runner, record, _cluster(search, library, target, reverts))
            try:
                with progress() as runner.progress:
                    answer = replace(answer, interrupted=hunting.run(range(search.count), until))
                runner.progress = None  # it is told of scenarios, by their numbers
                if not answer.interrupted:
                    answer = replace(answer, small=_make_small(hunting, search))
                    answer = _with_evidence(hunting, answer)
            except RecordError as error:  # what was judged before is kept, and told
                trouble = error
        return _tell(answer, results, trouble)


def _record(search: HuntSearch, target: TargetChoice, reverts: tuple[int, ...], library: Library) -> HuntRecord:
    """Open the record of the hunt, and say so if it has scenarios of another state. Raises RecordError."""
    from specdebug.apps.hunt.hunting import hunt_state
    from specdebug.apps.hunt.record import HuntRecord
    from specdebug.report.words import counted

    about = {"target": str(target), "seed": search.seed, "reverts": list(reverts), **search.engine}
    state = hunt_state(target, reverts, library)
    record = HuntRecord(search.output, about, state, anyway=search.resume_anyway)
    if record.differs:
        note(gone_on(counted(len(record.judged), "scenario"), record.differs))
    return record


def _cluster(
    search: HuntSearch, library: Library, target: TargetChoice, reverts: tuple[int, ...]
) -> Callable[[], TrialSource] | None:
    """Return what makes the cluster that runs the scenarios; None if they are to run here."""
    if search.executor is not Executor.RAY:
        return None
    from specdebug.apps.hunt.hunting import HuntSource
    from specdebug.campaign.trials.ray_executor import RaySource

    make = partial(HuntSource, target, search.seed, reverts, tuple(library.folders[1:]), search.engine)
    return lambda: RaySource(make(), make, address=search.ray_address, jobs=search.jobs)


def _tell(answer: HuntAnswer, results: JsonOptions, trouble: SpecDebugError | None) -> int:
    """Tell the results, write a page of the hunt and one of each failure, and return the exit code. Raises what cut
    the hunt short."""
    from specdebug.report.hunt import hunt_page, hunt_report, issue_page

    code = _exit_code(answer) if trouble is None else trouble.exit_code
    whole = (answer.record.folder / "report.md", lambda: hunt_page(answer))
    pages = [(answer.issue_of(one), partial(issue_page, answer, one)) for one in answer.record.findings]
    return tell(hunt_report(answer, code), results, whole, *pages, trouble=trouble)


def _make_small(hunting: Hunt, search: HuntSearch) -> dict[str, Path]:
    """Make the first scenario of each failure small, unless that was done before; return the files by signature."""
    from specdebug.apps.hunt.evidence import shrink, shrunk_path

    small: dict[str, Path] = {}
    for signature, ones in hunting.record.findings.items():
        path = shrunk_path(hunting, ones[0])
        if search.small and not path.exists():
            note(f"making scenario {ones[0].number} small: {signature}")
            shrink(hunting, ones[0], search.small)
        if path.exists():
            small[signature] = path
    return small


def _with_evidence(hunting: Hunt, answer: HuntAnswer) -> HuntAnswer:
    """Return the answer with what each failure's scenario shows when it is run by itself, unless a signal comes."""
    from specdebug.apps.hunt.evidence import gather
    from specdebug.report.replay import replay_document

    every: dict[str, SeenFailure] = {}
    for signature in answer.record.findings:
        file = answer.file_of(signature)
        if not file.exists():
            continue
        note(f"running {file.name} by itself: {signature}")
        seen = gather(hunting, signature, file, replay_document)
        if seen is None:
            return replace(answer, evidence=every, interrupted=True)
        every[signature] = seen
    return replace(answer, evidence=every)


def _words(search: HuntSearch) -> str:
    """The command that goes on with the hunt."""
    words = [
        "specdebug",
        "hunt",
        "-o",
        search.output.name or "hunt",
        "--count",
        str(search.count),
        "--seed",
        str(search.seed),
    ]
    words += ["--target", search.target] if search.target else []
    words += engine_words(search.engine)
    words += ["--resume-anyway"] if search.resume_anyway else []
    return shlex.join([*words, *(["--revert", ",".join(search.revert)] if search.revert else [])])


def _exit_code(answer: HuntAnswer) -> int:
    record = answer.record
    if answer.interrupted:
        return interrupts.exit_code()
    if record.findings:
        return EXIT_CODES["fail"]
    return EXIT_CODES["pass"] if record.count("pass") else EXIT_CODES["unknown"]

"""``specdebug replay`` and ``specdebug compare``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdebug import interrupts
from specdebug.bundle import ENDING
from specdebug.cli.options import (
    Content,
    Debug,
    File,
    Html,
    InDtype,
    Jobs,
    Json,
    Junit,
    OnDevice,
    Seed,
    Timeout,
    WithBackend,
    engine_overrides,
)
from specdebug.cli.output import show, write
from specdebug.cli.results import ReplayFiles
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.harness.library import Library
    from specdebug.harness.replay import Choices, Replay
    from specdebug.harness.scenario_model import Scenario
    from specdebug.harness.steplog import Recording
    from specdebug.report.progress import LiveProgress, PlainProgress
    from specdebug.targets.pool import WorkerPool


class Mode(StrEnum):
    """What a probe does that finds something: end the run, or write it down."""

    ASSERT = "assert"
    RECORD = "record"


@interrupts.held()
def replay(
    file: File,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", help="Run this arm only (repeatable); the exit code is its plain verdict."),
    ] = None,
    revert: Annotated[
        list[str] | None,
        typer.Option(
            "--revert",
            metavar="PR[,PR]",
            help="Revert these fixes as well, in the named arm or the first; exit code: its verdict.",
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="NAME[:key=value,...]",
            help="Inject this fault as well (repeatable), in the named arm or the first; exit code: its verdict.",
        ),
    ] = None,
    seed: Seed = None,
    mode: Annotated[Mode | None, typer.Option("--mode", help="Of every probe, over the packs'.")] = None,
    probes: Annotated[
        list[str] | None,
        typer.Option("--probes", metavar="PACK", help="Probe packs instead of the scenario's."),
    ] = None,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    as_json: Json = False,
    junit: Junit = None,
    html: Html = None,
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", metavar="FILE", help="The steps as a Chrome/Perfetto trace, too.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Of a bundle: run toggles that this installation does not have.")
    ] = False,
    jobs: Jobs = 0,
    timeout: Timeout = None,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Run a scenario's arms, each in a process of its own, and say what broke where.

    Exit code 0 when every arm did what the scenario expects of it, 1 when one did not, 125 when one came to
    no verdict. With --arm, --revert, --fault or SGLANG_DEBUG_REVERT_PR: the arm's own verdict, 0 pass, 1 fail, 125
    unknown; so, too, for a bundle (FILE.specdebug), of which it is said whether it came out as recorded.
    """
    files = ReplayFiles(junit, html, perfetto)
    files.check()
    if file.endswith(ENDING):
        options: dict[str, object] = {"arm": arm, "revert": revert, "fault": fault, "seed": seed, "mode": mode}
        options["probes"] = probes
        options |= {"device": device, "dtype": dtype, "backend": backend}
        _refuse_changes(file, options)
        return _replay_bundle(file, content, _positive(timeout), trust=trust, as_json=as_json, files=files)
    if trust:
        raise SpecDebugError("--trust is for bundles; a scenario's toggles are yours")
    with workers(jobs) as pool:
        from specdebug.faults.declare import parse_fault
        from specdebug.harness import replay as harness
        from specdebug.toggles import parse_numbers, reverts_from_environment

        library, scenario = _load(file, content)
        choices = harness.Choices(
            arms=tuple(arm or ()),
            reverts=(*parse_numbers(",".join(revert or ())), *reverts_from_environment()),
            faults=tuple(parse_fault(text) for text in fault or ()),
            seed=seed,
            mode=mode.value if mode is not None else None,
            probes=tuple(probes) if probes else None,
            timeout_s=_positive(timeout),
            engine=engine_overrides(device, dtype, backend),
        )
        return _replay(pool, library, scenario, choices, as_json=as_json, files=files)


def _replay(
    pool: WorkerPool,
    library: Library,
    scenario: Scenario,
    choices: Choices,
    *,
    as_json: bool,
    files: ReplayFiles,
) -> int:
    from specdebug.harness import replay as harness

    recording = files.recording()
    with progress() as watcher:
        answer = harness.replay(pool, library, scenario, choices, watcher, recording)
    _tell(answer, files, recording, as_json=as_json)
    return answer.exit_code


def _refuse_changes(file: str, options: Mapping[str, object]) -> None:
    """A bundle is run as it was recorded; anything else would be another run. Raises SpecDebugError."""
    from specdebug.toggles import REVERT_VARIABLE

    for name, value in options.items():
        if value not in (None, []):
            raise SpecDebugError(f"{file}: a bundle is replayed as recorded; --{name} does not go with it")
    if os.environ.get(REVERT_VARIABLE):
        raise SpecDebugError(f"{file}: a bundle is replayed as recorded; unset {REVERT_VARIABLE}")


def _replay_bundle(
    file: str,
    content: Sequence[Path] | None,
    timeout_s: float | None,
    *,
    trust: bool,
    as_json: bool,
    files: ReplayFiles,
) -> int:
    from specdebug.bundle.again import open_bundle, run_again

    bundle = open_bundle(file, None if trust else open_library(content).all_toggles())
    recording = files.recording()
    with workers(1) as pool, progress() as watcher:
        again = run_again(pool, bundle, timeout_s, watcher, recording)
    try:
        _publish(again.replay, as_json=as_json, beside=again.to_dict())
        if not as_json:
            write("\n".join(again.lines))
    finally:
        files.write(again.replay, recording)
    return again.replay.exit_code


def _tell(answer: Replay, files: ReplayFiles, recording: Recording | None, *, as_json: bool) -> None:
    """The report on stdout, then the files, also where there is no stdout any more."""
    try:
        _publish(answer, as_json=as_json)
    finally:
        files.write(answer, recording)


def _publish(answer: Replay, *, as_json: bool, beside: Mapping[str, object] | None = None) -> None:
    """``beside``: more keys for the JSON document."""
    if as_json:
        from specdebug.report.document import replay_document, to_json

        write(to_json(replay_document(answer) | dict(beside or {})))
    else:
        from specdebug.report.terminal import render_replay

        show(render_replay(answer))


@interrupts.held()
def compare(
    file: File,
    arm: Annotated[
        list[str] | None, typer.Option("--arm", help="Name two; the scenario's first two unless given.")
    ] = None,
    seed: Seed = None,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    as_json: Json = False,
    junit: Junit = None,
    html: Html = None,
    jobs: Jobs = 0,
    timeout: Timeout = None,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Run two arms and put them side by side, request by request.

    Exit code 0 when both come to the same verdict and every request to the same output, else 1; 125 when this machine
    cannot run one of them.
    """
    files = ReplayFiles(junit, html)
    files.check()
    with workers(jobs) as pool:
        from specdebug.harness import compare as comparing
        from specdebug.harness import replay as harness
        from specdebug.harness.scenario import engine_config
        from specdebug.harness.text import decoder, load_tokenizer

        library, scenario = _load(file, content)
        names = list(arm or list(scenario.arms)[:2])
        if len(names) != 2 or names[0] == names[1]:
            known = ", ".join(scenario.arms)
            raise SpecDebugError(f"compare needs two different arms; {scenario.path} has {known}")
        choices = harness.Choices(
            arms=tuple(names),
            seed=seed,
            timeout_s=_positive(timeout),
            engine=engine_overrides(device, dtype, backend),
        )
        recording = files.recording()
        with progress() as watcher:
            answer = harness.replay(pool, library, scenario, choices, watcher, recording)
        if answer.interrupted:  # there is nothing to compare; what is known of each arm is told
            _tell(answer, files, recording, as_json=as_json)
            return answer.exit_code
        left, right = (result.outcome for result in answer.results)
        decode = decoder(load_tokenizer(engine_config(scenario, names[0]).model))
        comparison = comparing.compare((names[0], names[1]), (left, right), decode)
        if as_json:
            from specdebug.report.document import comparison_document, to_json

            write(to_json(comparison_document(comparison)))
        else:
            from specdebug.report.terminal import render_comparison

            show(render_comparison(scenario.name, comparison))
        files.write_comparison(answer, comparison, recording)
        return comparison.exit_code


@contextmanager
def workers(jobs: int) -> Iterator[WorkerPool]:
    """Workers that are being started while the caller reads and checks what they are to do."""
    from specdebug.harness.preload import PRELOAD
    from specdebug.targets.pool import WorkerPool

    with WorkerPool(jobs, PRELOAD) as pool:
        pool.start()
        yield pool


@contextmanager
def progress() -> Iterator[LiveProgress | PlainProgress]:
    """Progress on stderr, if there is one."""
    from specdebug.report.progress import progress_on

    with contextlib.ExitStack() as stack:
        stream = sys.stderr or stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        watcher: LiveProgress | PlainProgress = progress_on(stream)
        with watcher:
            yield watcher


def open_library(content: Sequence[Path] | None) -> Library:
    """Shipped content, and the folders the command line names."""
    from specdebug.harness.library import Library

    return Library(content or ())


def _load(file: str, content: Sequence[Path] | None) -> tuple[Library, Scenario]:
    library = open_library(content)
    return library, library.scenario(file)


def _positive(timeout: float | None) -> float | None:
    if timeout is not None and not timeout > 0:
        raise SpecDebugError(f"--timeout must be above 0 seconds, got {timeout:g}")
    return timeout

"""``specdebug bundle``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from specdebug import interrupts
from specdebug.cli import complete
from specdebug.cli.options import (
    Content,
    Debug,
    Faults,
    File,
    InDtype,
    Json,
    JsonFile,
    OnDevice,
    Reverts,
    Seed,
    Timeout,
    WithBackend,
    WithPageSize,
    engine_overrides,
    positive,
)
from specdebug.cli.output import show, write
from specdebug.cli.replay import open_library, progress, workers
from specdebug.cli.results import check_files, write_files
from specdebug.errors import CannotRunHere


@interrupts.held()
def bundle(
    file: File,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.specdebug", help="Where to write it.")],
    arm: Annotated[
        str | None,
        typer.Option("--arm", help="Of the scenario; its first unless given.", autocompletion=complete.arms),
    ] = None,
    revert: Reverts = None,
    fault: Faults = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    seed: Seed = None,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    page_size: WithPageSize = None,
    as_json: Json = False,
    json_file: JsonFile = None,
    timeout: Timeout = None,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Run an arm and write all that it takes to run it elsewhere into one file, for `specdebug replay`.

    Exit code 0 when the bundle is written, whatever the arm's verdict; that is printed, and is what replaying gives.
    """
    from specdebug.bundle.archive import check_target
    from specdebug.toggles import parse_numbers, reverts_from_environment

    check_target(output, force)
    check_files(json_file)
    began = time.monotonic()
    with workers(1) as pool:
        from specdebug.bundle.content import write_bundle
        from specdebug.bundle.run import run_traced, versions_here
        from specdebug.faults.declare import parse_fault
        from specdebug.loops import replay as replaying
        from specdebug.report.document import replay_document, to_json
        from specdebug.report.terminal import render_replay

        library = open_library(content)
        scenario = library.scenario(file)
        choices = replaying.Choices(
            arms=(arm or next(iter(scenario.arms)),),
            reverts=(*parse_numbers(",".join(revert or ())), *reverts_from_environment()),
            faults=tuple(parse_fault(text) for text in fault or ()),
            seed=seed,
            timeout_s=positive(timeout),
            engine=engine_overrides(device, dtype, backend, page_size),
        )
        (run,) = replaying.plan(scenario, choices, library)
        with progress() as watcher:
            traced = run_traced(pool, library, run, watcher)
    if traced is None:
        return interrupts.exit_code()
    if traced.result.outcome.unavailable:
        raise CannotRunHere(f"no bundle written: {traced.result.outcome.detail}")
    answer = replaying.Replay(scenario, (traced.result,), time.monotonic() - began, traced.interrupted)
    document = replay_document(answer)
    if traced.interrupted:
        write(to_json(document)) if as_json else show(render_replay(answer))
        return interrupts.exit_code()
    requests = library.workload(run.scenario, run.arm, run.seed)
    here = versions_here(traced.result.outcome.stack)
    try:
        if not as_json:
            show(render_replay(answer))
    finally:  # also where stdout is gone
        write_bundle(output, traced, requests, here, document, force)
        size = output.stat().st_size
        text = to_json({**document, "bundle": {"path": str(output), "bytes": size}})
        said = f"wrote {output} ({size / 1024:.0f} KiB); specdebug replay {output} runs it again"
        try:
            write(text if as_json else said)
        finally:
            write_files((json_file, lambda: text + "\n"))
    return 0

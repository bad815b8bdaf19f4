"""``specdebug bundle``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from specdebug import interrupts
from specdebug.cli.options import Content, Debug, File, InDtype, OnDevice, Seed, Timeout, WithBackend, engine_overrides
from specdebug.cli.output import show, write
from specdebug.cli.replay import open_library, progress, workers
from specdebug.errors import SpecDebugError


@interrupts.held()
def bundle(
    file: File,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.specdebug", help="Where to write it.")],
    arm: Annotated[str | None, typer.Option("--arm", help="Of the scenario; its first unless given.")] = None,
    revert: Annotated[
        list[str] | None,
        typer.Option("--revert", metavar="PR[,PR]", help="Revert these fixes as well as the arm's own."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="NAME[:key=value,...]", help="Inject this fault as well (repeatable)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    seed: Seed = None,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
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
    if timeout is not None and not timeout > 0:
        raise SpecDebugError(f"--timeout must be above 0 seconds, got {timeout:g}")
    began = time.monotonic()
    with workers(1) as pool:
        from specdebug.bundle.content import write_bundle
        from specdebug.bundle.run import run_traced, versions_here
        from specdebug.faults.declare import parse_fault
        from specdebug.harness import replay as harness
        from specdebug.report.document import replay_document
        from specdebug.report.terminal import render_replay

        library = open_library(content)
        scenario = library.scenario(file)
        choices = harness.Choices(
            arms=(arm or next(iter(scenario.arms)),),
            reverts=(*parse_numbers(",".join(revert or ())), *reverts_from_environment()),
            faults=tuple(parse_fault(text) for text in fault or ()),
            seed=seed,
            timeout_s=timeout,
            engine=engine_overrides(device, dtype, backend),
        )
        (run,) = harness.plan(scenario, choices, library)
        with progress() as watcher:
            traced = run_traced(pool, library, run, watcher)
    if traced is None:
        return interrupts.exit_code()
    answer = harness.Replay(scenario, (traced.result,), time.monotonic() - began, traced.interrupted)
    show(render_replay(answer))
    if traced.interrupted:
        return interrupts.exit_code()
    requests = library.workload(run.scenario, run.arm, run.seed)
    here = versions_here(traced.result.outcome.stack)
    write_bundle(output, traced, requests, here, replay_document(answer), force)
    write(f"wrote {output} ({output.stat().st_size / 1024:.0f} KiB); specdebug replay {output} runs it again")
    return 0

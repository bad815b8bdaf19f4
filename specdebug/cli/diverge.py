"""``specdebug diverge``."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specdebug import interrupts
from specdebug.cli.options import (
    Content,
    Debug,
    File,
    InDtype,
    Jobs,
    OnDevice,
    Seed,
    Timeout,
    WithBackend,
    engine_overrides,
)
from specdebug.cli.output import check_writable, show, write, write_file
from specdebug.cli.replay import open_library, progress, workers
from specdebug.errors import SpecDebugError


@interrupts.held()
def diverge(
    file: File,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", help="Name two, or one to run twice; the scenario's first two unless given."),
    ] = None,
    revert: Annotated[
        list[str] | None,
        typer.Option("--revert", metavar="PR[,PR]", help="Revert these fixes as well, in the second arm."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="NAME[:key=value,...]", help="Inject this fault as well, in the second arm."),
    ] = None,
    seed: Seed = None,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="The answer as JSON; -: instead of the text.")
    ] = None,
    jobs: Jobs = 0,
    timeout: Timeout = None,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Run two arms and name the first step, request, site and tensor in which they differ, with both values.

    What another batch shape does to the last bits is told apart from a fault. Exit code 0 when nothing diverged (but
    for rounding), 1 when something did, 125 when the two cannot be compared.
    """
    if timeout is not None and not timeout > 0:
        raise SpecDebugError(f"--timeout must be above 0 seconds, got {timeout:g}")
    if json is not None and json != "-":
        check_writable(Path(json))
    with workers(jobs) as pool:
        from specdebug.diverge.run import Diverging
        from specdebug.faults.declare import parse_fault
        from specdebug.harness import replay as harness
        from specdebug.report.diverge import divergence_document, render_divergence
        from specdebug.report.document import to_json
        from specdebug.toggles import parse_numbers

        library = open_library(content)
        scenario = library.scenario(file)
        reverts = parse_numbers(",".join(revert or ()))
        faults = tuple(parse_fault(text) for text in fault or ())
        names = list(arm or list(scenario.arms)[:2])
        changed = bool(reverts or faults)
        if len(names) == 1:
            names *= 2
        if len(names) != 2 or (names[0] == names[1] and not changed):
            known = ", ".join(scenario.arms)
            raise SpecDebugError(f"diverge needs two arms, or one and --revert or --fault; {scenario.path} has {known}")
        both = harness.Choices(
            arms=(names[0],), seed=seed, timeout_s=timeout, engine=engine_overrides(device, dtype, backend)
        )
        (left,) = harness.plan(scenario, both, library)
        second = replace(both, arms=(names[1],), reverts=tuple(reverts), faults=faults)
        (right,) = harness.plan(scenario, second, library)
        with tempfile.TemporaryDirectory(prefix="specdebug-diverge-") as folder, progress() as watcher:
            answer = Diverging(pool, library, (left, right), Path(folder), watcher).run()
        document = to_json(divergence_document(scenario.name, answer))
    if json == "-":
        write(document)
        return answer.exit_code
    show(render_divergence(scenario.name, answer))
    if json is not None:
        write_file(Path(json), document + "\n")
    return answer.exit_code

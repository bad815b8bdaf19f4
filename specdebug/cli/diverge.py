"""``specdebug diverge``."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specdebug import interrupts
from specdebug.cli import complete
from specdebug.cli.options import (
    Content,
    Debug,
    File,
    InDtype,
    Jobs,
    Json,
    JsonFile,
    OnDevice,
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
from specdebug.errors import SpecDebugError


@interrupts.held()
def diverge(
    file: File,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            help="Name two, or one to run twice; the scenario's first two unless given.",
            autocompletion=complete.arms,
        ),
    ] = None,
    revert: Annotated[
        list[str] | None,
        typer.Option(
            "--revert",
            metavar="PR[,PR]",
            help="Revert these fixes as well, in the second arm.",
            autocompletion=complete.fixes,
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="NAME[:key=value,...]",
            help="Inject this fault as well, in the second arm.",
            autocompletion=complete.faults,
        ),
    ] = None,
    seed: Seed = None,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    page_size: WithPageSize = None,
    as_json: Json = False,
    json_file: JsonFile = None,
    jobs: Jobs = 0,
    timeout: Timeout = None,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Run two arms and name the first step, request, site and tensor in which they differ, with both values.

    What another batch shape does to the last bits is told apart from a fault. Exit code 0 when nothing diverged (but
    for rounding), 1 when something did, 125 when the two cannot be compared.
    """
    check_files(json_file)
    with workers(jobs) as pool:
        from specdebug.diverge.run import Diverging
        from specdebug.faults.declare import parse_fault
        from specdebug.loops import replay as replaying
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
        both = replaying.Choices(
            arms=(names[0],),
            seed=seed,
            timeout_s=positive(timeout),
            engine=engine_overrides(device, dtype, backend, page_size),
        )
        (left,) = replaying.plan(scenario, both, library)
        second = replace(both, arms=(names[1],), reverts=tuple(reverts), faults=faults)
        (right,) = replaying.plan(scenario, second, library)
        with tempfile.TemporaryDirectory(prefix="specdebug-diverge-") as folder, progress() as watcher:
            answer = Diverging(pool, library, (left, right), Path(folder), watcher).run()
        document = to_json(divergence_document(scenario.name, answer))
    try:
        write(document) if as_json else show(render_divergence(scenario.name, answer))
    finally:
        write_files((json_file, lambda: document + "\n"))
    return answer.exit_code

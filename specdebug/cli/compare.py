"""``specdebug compare``."""

from __future__ import annotations

from typing import Annotated

import typer

from specdebug import interrupts
from specdebug.cli import complete
from specdebug.cli.options import (
    Content,
    Debug,
    File,
    Html,
    InDtype,
    Jobs,
    Json,
    JsonFile,
    Junit,
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
from specdebug.cli.replay_scenarios import tell
from specdebug.cli.results import ReplayFiles
from specdebug.errors import SpecDebugError


@interrupts.held()
def compare(
    file: File,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", help="Name two; the scenario's first two unless given.", autocompletion=complete.arms),
    ] = None,
    seed: Seed = None,
    device: OnDevice = None,
    dtype: InDtype = None,
    backend: WithBackend = None,
    page_size: WithPageSize = None,
    as_json: Json = False,
    json_file: JsonFile = None,
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
    files = ReplayFiles(junit, html, json=json_file)
    files.check()
    with workers(jobs) as pool:
        from specdebug.loops import compare as comparing
        from specdebug.loops import replay as replaying
        from specdebug.scenario.load import engine_config
        from specdebug.scenario.text import decoder, load_tokenizer

        library = open_library(content)
        scenario = library.scenario(file)
        names = list(arm or list(scenario.arms)[:2])
        if len(names) != 2 or names[0] == names[1]:
            known = ", ".join(scenario.arms)
            raise SpecDebugError(f"compare needs two different arms; {scenario.path} has {known}")
        choices = replaying.Choices(
            arms=tuple(names),
            seed=seed,
            timeout_s=positive(timeout),
            engine=engine_overrides(device, dtype, backend, page_size),
        )
        recording = files.recording()
        with progress() as watcher:
            answer = replaying.replay(pool, library, scenario, choices, watcher, recording)
        if answer.interrupted:  # there is nothing to compare; what is known of each arm is told
            return tell(answer, files, recording, as_json=as_json)
        left, right = (result.outcome for result in answer.results)
        decode = decoder(load_tokenizer(engine_config(scenario, names[0]).model))
        comparison = comparing.compare((names[0], names[1]), (left, right), decode)

        def document() -> str:
            from specdebug.report.document import comparison_document, to_json

            return to_json(comparison_document(comparison))

        try:
            if as_json:
                write(document())
            else:
                from specdebug.report.terminal import render_comparison

                show(render_comparison(scenario.name, comparison))
        finally:
            files.write_comparison(answer, comparison, recording, lambda: document() + "\n")
        return comparison.exit_code

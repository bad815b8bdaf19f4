"""``specdebug compare``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from specdebug import interrupts
from specdebug.cli.options import (
    ArmsOption,
    Content,
    Debug,
    EngineOptions,
    File,
    ResultOptions,
    RunOptions,
    Seed,
    positive,
)
from specdebug.cli.output import show, write
from specdebug.cli.params import Help, grouped
from specdebug.cli.replay import open_library, progress, workers
from specdebug.cli.replay_scenarios import tell
from specdebug.cli.results import ReplayFiles
from specdebug.errors import SpecDebugError

if TYPE_CHECKING:
    from specdebug.loops.replay import Replay
    from specdebug.loops.steplog import Recording
    from specdebug.scenario.grammar import Scenario


@grouped
@interrupts.held()
def compare(
    file: File,
    *,
    arm: Annotated[ArmsOption, Help("Name two; the scenario's first two unless given.")] = None,
    seed: Seed = None,
    engine: EngineOptions,
    results: ResultOptions,
    runs: RunOptions,
    content: Content = None,
    debug: Debug = False,
) -> int:
    """Run two arms and put them side by side, request by request.

    Exit code 0 when both come to the same verdict and every request to the same output, else 1; 125 when this machine
    cannot run one of them.
    """
    files = ReplayFiles(results.junit, results.html, json=results.json_file)
    files.check()
    with workers(runs.jobs) as pool:
        from specdebug.loops import replay as replaying

        library = open_library(content)
        scenario = library.scenario(file)
        choices = replaying.Choices(
            arms=_two_arms(scenario, arm),
            seed=seed,
            timeout_s=positive(runs.timeout),
            engine=engine.overrides(),
        )
        recording = files.recording()
        with progress() as watcher:
            answer = replaying.replay(pool, library, scenario, choices, watcher, recording)
        if answer.interrupted:  # there is nothing to compare; what is known of each arm is told
            return tell(answer, files, recording, as_json=results.as_json)
        return _tell_both(answer, choices.arms, files, recording, as_json=results.as_json)


def _two_arms(scenario: Scenario, named: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(named or list(scenario.arms)[:2])
    if len(names) != 2 or names[0] == names[1]:
        known = ", ".join(scenario.arms)
        raise SpecDebugError(f"compare needs two different arms; {scenario.path} has {known}")
    return names


def _tell_both(
    answer: Replay, names: tuple[str, ...], files: ReplayFiles, recording: Recording | None, *, as_json: bool
) -> int:
    """Say how the two arms differ on stdout, then in files; return the exit code."""
    from specdebug.loops import compare as comparing
    from specdebug.report.document import comparison_document, to_json
    from specdebug.scenario.load import engine_config
    from specdebug.scenario.text import decoder, load_tokenizer

    left, right = (result.outcome for result in answer.results)
    decode = decoder(load_tokenizer(engine_config(answer.scenario, names[0]).model))
    comparison = comparing.compare((names[0], names[1]), (left, right), decode)
    document = to_json(comparison_document(comparison))
    try:
        if as_json:
            write(document)
        else:
            from specdebug.report.terminal import render_comparison

            show(render_comparison(answer.scenario.name, comparison))
    finally:
        files.write_comparison(answer, comparison, recording, lambda: document + "\n")
    return comparison.exit_code

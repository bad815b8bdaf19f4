"""``specdebug compare``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.cli.options import (
    ArmsOption,
    BaselineFile,
    ContentOptions,
    EngineOptions,
    File,
    NoLocate,
    ResultOptions,
    RunOptions,
    Seed,
    command_line,
    open_baseline,
    positive,
)
from specdebug.cli.output import show
from specdebug.cli.params import Help, grouped
from specdebug.cli.replay import progress, workers
from specdebug.cli.results import files_of, tell_replay, tell_results

if TYPE_CHECKING:
    from specdebug.campaign.loops.replay import Progress, Replay
    from specdebug.campaign.loops.steplog import Recording
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.library import Library
    from specdebug.workers.pool import WorkerPool


@grouped
@interrupts.held()
def compare(
    file: File,
    *,
    arm: Annotated[ArmsOption, Help("Name two; the scenario's first two unless given.")] = None,
    seed: Seed = None,
    engine: EngineOptions,
    no_locate: NoLocate = False,
    results: ResultOptions,
    baseline: BaselineFile = None,
    runs: RunOptions,
    shared: ContentOptions,
) -> int:
    """Run two arms and put them side by side, request by request.

    Exit code 0 when both come to the same verdict and every request to the same output, else 1; 1, too, when one loses
    accept length against the baseline; 125 when this machine cannot run one of them.
    """
    results.check()
    held = open_baseline(baseline)
    with workers(runs.jobs) as pool:
        from specdebug.campaign.loops import replay as replaying

        library = shared.library()
        scenario = library.scenario(file)
        choices = replace(
            engine.choices(),
            arms=_two_arms(scenario, arm),
            seed=seed,
            timeout_s=positive(runs.timeout),
        )
        recording = results.recording()
        with progress() as watcher:
            answer = replaying.replay(pool, library, scenario, choices, watcher, recording, held)
            if not (no_locate or answer.interrupted):
                answer = _located(pool, library, answer, watcher)
        if answer.interrupted:  # there is nothing to compare; what is known of each arm is told
            return tell_replay(answer, results, recording)
        return _tell_both(answer, choices.arms, results, recording)


def _two_arms(scenario: Scenario, named: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(named or list(scenario.arms)[:2])
    if len(names) != 2 or names[0] == names[1]:
        known = ", ".join(scenario.arms)
        raise SpecDebugError(f"compare needs two different arms; {scenario.path} has {known}")
    return names


def _located(pool: WorkerPool, library: Library, answer: Replay, progress: Progress) -> Replay:
    """Return the answer with the places where failures began."""
    if not any(result.to_locate for result in answer.results):
        return answer  # importing what follows takes seconds
    from specdebug.diverge.locate import Locator

    (answer,) = Locator(pool, library, progress).in_replays([answer])
    return answer


def _tell_both(answer: Replay, names: tuple[str, ...], results: ResultOptions, recording: Recording | None) -> int:
    """Tell how the two arms differ, and return the exit code."""
    from specdebug.campaign.loops import compare as comparing
    from specdebug.report.document import comparison_document
    from specdebug.report.formats import Told
    from specdebug.report.github import comparison_annotations, comparison_summary
    from specdebug.report.terminal import render_comparison
    from specdebug.scenario.checks import asked_of
    from specdebug.scenario.text import decoder, load_tokenizer

    left, right = (result.outcome for result in answer.results)
    against = tuple(result.against for result in answer.results)
    decode = decoder(load_tokenizer(asked_of(answer.scenario, names[0]).model))
    comparison = comparing.compare((names[0], names[1]), (left, right), decode, against)
    tell_results(
        results,
        lambda: comparison_document(comparison),
        lambda: show(render_comparison(answer.scenario.name, comparison)),
        *files_of(results, Told(answer, comparison, recording, command_line())),
        summary=lambda: comparison_summary(answer, comparison),
        annotations=lambda: comparison_annotations(answer, comparison),
    )
    return comparison.exit_code

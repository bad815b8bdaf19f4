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
    Help,
    NoLocate,
    ResultOptions,
    RunOptions,
    Seed,
    grouped,
    open_baseline,
    positive,
)
from specdebug.cli.output import tell
from specdebug.cli.running import progress, workers

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
            from specdebug.report.replay import replay_report

            return tell(replay_report(answer, recording), results)
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
    from specdebug.report.compare import compare_report
    from specdebug.scenario.checks import asked_of
    from specdebug.scenario.text import decoder, load_tokenizer

    left, right = (result.outcome for result in answer.results)
    against = tuple(result.against for result in answer.results)
    decode = decoder(load_tokenizer(asked_of(answer.scenario, names[0]).model))
    comparison = comparing.compare((names[0], names[1]), (left, right), decode, against)
    return tell(compare_report(answer, comparison, recording), results)

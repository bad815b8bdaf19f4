"""``specdebug compare``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.base.errors import SpecDebugError
from specdebug.cli import options as opt
from specdebug.cli.output import progress, tell, workers

if TYPE_CHECKING:
    from specdebug.campaign.loops.compare import Comparison
    from specdebug.campaign.loops.replay import Replay
    from specdebug.scenario.grammar import Scenario


class CompareCommand(opt.EngineOptions, opt.ResultOptions, opt.RunOptions, opt.ContentOptions):
    """Run two arms and put them side by side, request by request.

    Exit code 0 when both come to the same verdict and every request to the same output, else 1; 1, too, when one loses
    accept length against the baseline; 125 when this machine cannot run one of them.
    """

    held = True
    file: str = opt.file_argument()
    arm: list[str] | None = opt.arm_option("Name two; the scenario's first two unless given.")
    seed: int | None = opt.seed_option()
    no_locate: bool = opt.no_locate_option()
    baseline: Path | None = opt.baseline_option()

    def run(self) -> int:
        self.check_outputs()
        from specdebug.campaign.loops.baseline import Baseline

        held = None if self.baseline is None else Baseline.read(self.baseline)
        with workers(self.jobs) as pool:
            from specdebug.campaign.loops import replay as replaying
            from specdebug.report.replay import replay_report

            library = self.library()
            scenario = library.scenario(self.file)
            arms, timeout_s = self._two_arms(scenario), opt.positive(self.timeout)
            choices = replace(self.choices(), arms=arms, seed=self.seed, timeout_s=timeout_s)
            recording = self.recording()
            with progress() as watcher:
                watched = replaying.Watched(progress=watcher, recording=recording, baseline=held)
                answer = replaying.replay(pool, library, scenario, choices, **watched)
                locate = not (self.no_locate or answer.interrupted)
                if locate and any(result.to_locate for result in answer.results):
                    from specdebug.diverge.locate import Locator  # takes seconds

                    (answer,) = Locator(pool, library, watcher).in_replays([answer])
            if answer.interrupted:  # there is nothing to compare; what is known of each arm is told
                return tell(replay_report(answer, recording), self)
            from specdebug.report.compare import compare_report

            return tell(compare_report(answer, _comparison(answer, arms), recording), self)

    def _two_arms(self, scenario: Scenario) -> tuple[str, str]:
        names = list(self.arm or list(scenario.arms)[:2])
        if len(names) != 2 or names[0] == names[1]:
            known = ", ".join(scenario.arms)
            raise SpecDebugError(f"compare needs two different arms; {scenario.path} has {known}")
        return names[0], names[1]


def _comparison(answer: Replay, names: tuple[str, str]) -> Comparison:
    from specdebug.campaign.loops import compare as comparing
    from specdebug.scenario.checks import asked_of
    from specdebug.scenario.text import decoder, load_tokenizer

    left, right = (result.outcome for result in answer.results)
    against = tuple(result.against for result in answer.results)
    decode = decoder(load_tokenizer(asked_of(answer.scenario, names[0]).model))
    return comparing.compare(names, (left, right), decode, against)

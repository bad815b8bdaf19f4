"""``specdebug compare`` and ``specdebug diverge``: two arms side by side, and where they part."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdebug.base.errors import SpecDebugError
from specdebug.cli import options as opt
from specdebug.cli.output import progress, tell, workers
from specdebug.faults.declare import parse_fault
from specdebug.patching.toggles import parse_numbers
from specdebug.scenario.checks import asked_of
from specdebug.scenario.text import decoder, load_tokenizer
from specdebug.targets.settings import ReleasedEngine, parse_target

if TYPE_CHECKING:
    from specdebug.campaign.loops.compare import Comparison
    from specdebug.campaign.loops.replay import ArmRun, Choices, Replay
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.library import Library
    from specdebug.targets.settings import TargetChoice


class CompareCommand(opt.EngineOptions, opt.ResultOptions, opt.RunOptions, opt.ContentOptions):
    """Run two arms and put them side by side, request by request.

    Exit code 0 when both come to the same verdict and every request to the same output, else 1; 1, too, when one loses
    accept length against the baseline; 125 when this machine cannot run one of them.
    """

    example = "compare scenarios/cache_hit.yaml --arm recompute --arm zero_fill"
    held = True
    file: str = opt.file_argument()
    arm: list[str] | None = opt.arm_option("Run this arm (give two); the scenario's first two unless given.")
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

    left, right = (result.outcome for result in answer.results)
    against = tuple(result.against for result in answer.results)
    decode = decoder(load_tokenizer(asked_of(answer.scenario, names[0]).model))
    return comparing.compare(names, (left, right), decode, against)


class DivergeCommand(opt.EngineOptions, opt.JsonOptions, opt.RunOptions, opt.ContentOptions):
    """Run two arms and name the first step, request, site and tensor in which they differ, with both values.

    ARM@TARGET runs an arm on that target: fixed@sglang==0.5.13, fixed@embedded; or, with --target sglang, fixed@0.5.13.
    What another batch shape does to the last bits is told apart from a fault. Exit code 0 when nothing diverged (but
    for rounding), 1 when something did, 125 when the two cannot be compared.
    """

    example = "diverge scenarios/draft_positions.yaml --arm fixed --arm reverted"
    held = True
    file: str = opt.file_argument()
    arm: list[str] | None = opt.arm_option(
        "Run this arm (give two, or one to run it twice); the scenario's first two unless given."
    )
    revert: list[str] | None = opt.revert_option("Revert these fixes as well, in the second arm.")
    fault: list[str] | None = opt.fault_option("Inject this fault as well, in the second arm.")
    seed: int | None = opt.seed_option()

    def run(self) -> int:
        self.check_outputs()
        with workers(self.jobs) as pool:
            from specdebug.diverge.run import Diverging
            from specdebug.report.diverge import divergence_report

            library = self.library()
            scenario = library.scenario(self.file)
            changes = replace(
                self.choices(),
                reverts=tuple(parse_numbers(",".join(self.revert or ()))),
                faults=tuple(parse_fault(text) for text in self.fault or ()),
                seed=self.seed,
                timeout_s=opt.positive(self.timeout),
            )
            both = self._planned(scenario, changes, library)
            with tempfile.TemporaryDirectory(prefix="specdebug-diverge-") as folder, progress() as watcher:
                answer = Diverging(pool, library, both, Path(folder), watcher).run()
        return tell(divergence_report(scenario.name, answer), self)

    def _planned(self, scenario: Scenario, changes: Choices, library: Library) -> tuple[ArmRun, ArmRun]:
        """The first arm as it is, and the second with the changes. One arm is compared with itself only if the second
        run is changed, or made elsewhere."""
        from specdebug.campaign.loops.replay import plan

        arms = [_placed(name, scenario, changes) for name in self.arm or list(scenario.arms)[:2]]
        if len(arms) == 1:
            arms *= 2
        if len(arms) != 2 or (arms[0] == arms[1] and not (changes.reverts or changes.faults)):
            known = ", ".join(scenario.arms)
            raise SpecDebugError(
                f"diverge needs two arms, or one and --revert or --fault, or one on two targets (--arm ARM@TARGET); "
                f"{scenario.path} has {known}"
            )
        (one, on), (other, there) = arms
        (left,) = plan(scenario, replace(changes, arms=(one,), reverts=(), faults=(), target=on), library)
        (right,) = plan(scenario, replace(changes, arms=(other,), target=there), library)
        return left, right


def _placed(name: str, scenario: Scenario, changes: Choices) -> tuple[str, TargetChoice | None]:
    """An arm's name, and the target that is written behind it."""
    arm, at, place = name.partition("@")
    if not at:
        return arm, changes.target
    if place[:1].isdigit():
        of = changes.target or scenario.target_of(arm) if arm in scenario.arms else changes.target
        if not isinstance(of, ReleasedEngine):
            raise SpecDebugError(f"--arm {name}: a version of what? Write {arm}@sglang=={place}, or --target sglang")
        place = f"{of.kind}=={place}"
    return arm, parse_target(place, option="--arm")

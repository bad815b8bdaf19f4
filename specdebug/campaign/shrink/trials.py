"""Trials of what is left of a scenario, run warm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdebug import __version__
from specdebug.base.errors import CannotRunHere
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.loops.warm import ArmAtFault, WarmPool
from specdebug.campaign.trials.arm_state import arm_question, arm_state
from specdebug.campaign.trials.state import digest_of
from specdebug.campaign.trials.warm import WarmSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specdebug.campaign.shrink.space import ScenarioSpace
    from specdebug.campaign.trials.source import Candidate
    from specdebug.patching.toggles import Toggle
    from specdebug.scenario.grammar import Scenario
    from specdebug.scenario.packs import ProbePack

_GROUP_KIND = "accept-drop@"


class ShrunkSource(WarmSource):
    """Runs the only arm of a scenario of which something was taken away, with its packs and the fixes it reverts."""

    candidates: tuple[Candidate, ...] = ()  # what can be taken away is known stage by stage

    def __init__(
        self, space: ScenarioSpace, packs: Sequence[ProbePack], toggles: Sequence[Toggle], jobs: int = 1
    ) -> None:
        super().__init__(WarmPool(space.start, (space.arm,), toggles, jobs))
        self._space = space
        self._packs = tuple(packs)
        self._toggles = tuple(toggles)
        self._left: dict[int, Scenario] = {}
        self._ended_once = False

    @property
    def question(self) -> str:
        fixes = (str(toggle.pr) for toggle in self._toggles)
        return digest_of("minimise", *arm_question(self._space.start, self._space.arm), *fixes)

    @property
    def identity(self) -> str:
        """Return a digest of the whole, packs, fixes and versions."""
        return digest_of("minimise", *self._facts)

    def state(self) -> dict[str, str]:
        return arm_state(self._space.start, self._space.arm, self._facts)

    @property
    def _facts(self) -> tuple[str, ...]:
        told = (self._space.start.to_dict(), self._space.start.overrides, self._toggles, self._packs)
        return (*map(repr, told), __version__)

    def leave(self, number: int, left: Scenario) -> None:
        """Say what is left of the scenario in a trial that may be started."""
        self._left[number] = left

    def run_of(self, trial: Trial, key: str) -> ArmRun:
        left = self._left.pop(trial.number)
        return ArmRun(key, left, self._space.arm, trial.seed, self._packs, self._toggles)

    def at_fault(self, trial: Trial, fault: ArmAtFault) -> TrialResult:
        """Return that the trial is untestable: once something could be run, only what is left is wrong."""
        if not self._ended_once:
            raise fault
        return TrialResult("untestable", None, 0.0, str(fault))

    def result_of(self, trial: Trial, ended: ArmResult) -> TrialResult:
        """Return how the arm failed, if it did. Raises CannotRunHere when this machine cannot run the scenario."""
        outcome = ended.outcome
        if outcome.unavailable:
            raise CannotRunHere(f"{ended.run.scenario.path}: {'; '.join(outcome.reasons)}")
        self._ended_once = True
        if outcome.verdict == "fail" and outcome.signature is not None:
            return TrialResult("fail", self._named_before(outcome.signature), outcome.metrics.wall_s, outcome.detail)
        return TrialResult("pass", None, outcome.metrics.wall_s)

    def _named_before(self, signature: str) -> str:
        """Return a signature with the group that it names called as it was before it was written out."""
        if not signature.startswith(_GROUP_KIND):
            return signature
        group = signature.removeprefix(_GROUP_KIND)
        return _GROUP_KIND + self._space.origin.get(group, group)

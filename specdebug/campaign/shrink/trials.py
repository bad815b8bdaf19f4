"""Trials of what is left of a scenario, run warm."""

from __future__ import annotations

from collections.abc import Sequence

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmResult
from specdebug.campaign.shrink.space import ScenarioSpace
from specdebug.campaign.trials.source import Candidate
from specdebug.campaign.trials.warm import WarmSource, texts_of
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
        super().__init__(
            "minimise",
            space.start,
            space.arm,
            packs,
            asked=[str(toggle.pr) for toggle in toggles],
            own=toggles,
            toggles=toggles,
            texts=texts_of(toggles),
            jobs=jobs,
        )
        self._origin = space.origin
        self._left: dict[int, Scenario] = {}

    def leave(self, number: int, left: Scenario) -> None:
        """Say what is left of the scenario in a trial that may be started."""
        self._left[number] = left

    def changed(self, trial: Trial) -> tuple[Scenario, Sequence[Toggle]]:
        return self._left.pop(trial.number), ()

    def may_be_wrong(self, trial: Trial) -> bool:
        """Return True once something could be run: then only what is left is wrong."""
        return self._has_run

    def result_of(self, trial: Trial, ended: ArmResult) -> TrialResult:
        """Return how the arm failed, if it did."""
        outcome = ended.outcome
        if outcome.verdict == "fail" and outcome.signature is not None:
            return TrialResult("fail", self._named_before(outcome.signature), outcome.metrics.wall_s, outcome.detail)
        return TrialResult("pass", None, outcome.metrics.wall_s)

    def _named_before(self, signature: str) -> str:
        """Return a signature with the group that it names called as it was before it was written out."""
        if not signature.startswith(_GROUP_KIND):
            return signature
        group = signature.removeprefix(_GROUP_KIND)
        return _GROUP_KIND + self._origin.get(group, group)

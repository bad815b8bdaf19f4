"""Trials of a scenario with some of its faults injected, in warm workers: which of them makes it fail?

The arm is as its file has it but for its faults: only those that a trial switches on are injected. A fault that was
never due, or changed nothing, has not shown, so that a trial with nothing else to say has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmResult
from specdebug.campaign.trials.scenario import arm_of, result_of
from specdebug.campaign.trials.source import Candidate
from specdebug.campaign.trials.warm import WarmSource, texts_of, within
from specdebug.faults.catalogue import CLASSES
from specdebug.faults.model import Fault
from specdebug.patching.toggles import Toggle
from specdebug.scenario.checks import check_faults
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.library import Library
from specdebug.verdict.outcome import Outcome


class FaultSource(WarmSource):
    """Runs one arm of a scenario again and again, with different faults. ``declared`` are those in the file.

    Args:
        faults: candidates beside those that the arm declares.
        arm: the arm to run; by default the first that declares faults, else the first that reverts nothing.
        timeout_s: of a trial, instead of the scenario's own.

    Raises SpecDebugError for an unknown arm, fewer than two faults, or one of them twice, a fault that cannot act
    in the arm, and a malformed pack or toggle.
    """

    def __init__(
        self,
        library: Library,
        scenario: Scenario,
        *,
        faults: Sequence[Fault] = (),
        arm: str | None = None,
        jobs: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        damaged = [name for name in scenario.arms if scenario.faults_of(name)]
        self.arm = arm_of(scenario, arm or next(iter(damaged), None))
        self.declared = {str(fault) for fault in scenario.faults_of(self.arm)}
        self._faults: dict[str, Fault] = {}
        for fault in (*scenario.faults_of(self.arm), *faults):
            if str(fault) in self._faults:
                raise SpecDebugError(f"the fault {fault} is there twice; a trial can switch it on but once")
            self._faults[str(fault)] = fault
        if len(self._faults) < 2:
            has = f"only {next(iter(self._faults))}" if self._faults else "none"
            raise SpecDebugError(
                f"--over faults needs two faults at least, and arm '{self.arm}' of {scenario.path} declares {has}; "
                "add some with --fault NAME[:key=value,...]"
            )
        whole = _with_faults(within(scenario, timeout_s), self.arm, tuple(self._faults.values()))
        check_faults(whole, self.arm)
        own = library.toggles(scenario.arms[self.arm].revert, scenario.target_of(self.arm))
        self.candidates = tuple(Candidate(name, CLASSES[fault.name].summary) for name, fault in self._faults.items())
        packs = library.packs(scenario.probes_of(self.arm))
        super().__init__(
            "faults",
            whole,
            self.arm,
            packs,
            asked=tuple(self._faults),
            own=own,
            toggles=own,
            texts=texts_of(own),
            jobs=jobs,
        )

    def changed(self, trial: Trial) -> tuple[Scenario, Sequence[Toggle]]:
        """Return the arm with the trial's faults, numbered as in a replay with these, so that they draw the same."""
        return _with_faults(self._scenario, self.arm, self._switched(trial)), ()

    def result_of(self, trial: Trial, ended: ArmResult) -> TrialResult:
        """Return what the arm's verdict says, but for faults that did nothing."""
        return result_of(_but_for_idle(ended.outcome, self._switched(trial)))

    def _switched(self, trial: Trial) -> tuple[Fault, ...]:
        return tuple(fault for name, fault in self._faults.items() if name in trial.reverted)


def _with_faults(scenario: Scenario, arm: str, faults: tuple[Fault, ...]) -> Scenario:
    return replace(scenario, arms={**scenario.arms, arm: replace(scenario.arms[arm], faults=faults)})


def _but_for_idle(outcome: Outcome, faults: Sequence[Fault]) -> Outcome:
    """Return the outcome without what is said of faults that were never due or changed nothing."""
    if outcome.verdict != "unknown":
        return outcome
    idle = tuple(f"fault {fault} " for fault in faults)
    left = tuple(reason for reason in outcome.reasons if not reason.startswith(idle))
    return replace(outcome, verdict="unknown" if left else "pass", reasons=left, detail="; ".join(left))

"""A source whose trials are arms of one scenario, run warm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.loops.warm import ArmAtFault, WarmPool


class WarmSource(ABC):
    """Starts, waits and closes; derived classes say which arm a trial is, and what its end says of it."""

    def __init__(self, pool: WarmPool) -> None:
        self._pool = pool
        self._trials: dict[str, Trial] = {}

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    @property
    def rerun(self) -> int:
        return self._pool.rerun

    @abstractmethod
    def run_of(self, trial: Trial, key: str) -> ArmRun:
        """Return the arm to run, under this key."""

    @abstractmethod
    def result_of(self, trial: Trial, ended: ArmResult) -> TrialResult:
        """Return what an arm's end says of its trial. What it raises, :meth:`wait` raises."""

    def at_fault(self, trial: Trial, fault: ArmAtFault) -> TrialResult:
        """Return what it says of a trial that its scenario was found wrong; by default, raise the fault."""
        raise fault

    def start(self, trial: Trial) -> None:
        run = self.run_of(trial, f"trial {trial.number}")
        self._trials[run.key] = trial
        self._pool.start(run)

    def wait(self) -> tuple[Trial, TrialResult]:
        """Return the next trial to end. Raises ArmAtFault when the scenario itself is wrong, CannotRunHere when this
        machine lacks what it needs."""
        try:
            ended = self._pool.wait()
        except ArmAtFault as fault:
            trial = self._trials.pop(fault.run.key)
            return trial, self.at_fault(trial, fault)
        trial = self._trials.pop(ended.run.key)
        result = self.result_of(trial, ended)
        return trial, replace(result, not_engine_code=ended.outcome.not_engine_code)

    def close(self) -> None:
        self._pool.close()

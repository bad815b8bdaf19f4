"""A source whose trials are one arm of a scenario, run warm, each with something changed."""

from __future__ import annotations

import json
import platform
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from specdebug import __version__
from specdebug.base.errors import CannotRunHere, InvalidOption
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.loops.warm import ArmAtFault, WarmPool
from specdebug.campaign.trials.arm_state import arm_state
from specdebug.campaign.trials.state import digest_of
from specdebug.patching.toggles import Toggle
from specdebug.scenario.grammar import Scenario
from specdebug.scenario.packs import ProbePack


class WarmSource(ABC):
    """Starts, waits, closes and says what its trials belong to; derived classes say how a trial changes the arm, and
    what its end says.

    Args:
        kind: of changes; ``asked``: what else decides what is searched, but for the file's content.
        toggles: fixes that the workers are made ready for; ``own``: those that every trial reverts.
        texts: the content of files that trials depend on besides the scenario and its packs.

    Attributes:
        question: see ``Origin``.
        identity: see ``TrialSource``.
    """

    def __init__(
        self,
        kind: str,
        scenario: Scenario,
        arm: str,
        packs: Sequence[ProbePack],
        *,
        asked: Sequence[str],
        own: Sequence[Toggle],
        toggles: Sequence[Toggle],
        texts: Sequence[str],
        jobs: int,
    ) -> None:
        self.arm = arm
        self._scenario = scenario
        self._packs = tuple(packs)
        self._own = tuple(own)
        self._pool = WarmPool(scenario, (arm,), toggles, jobs)
        self._trials: dict[str, Trial] = {}
        self._refused: deque[tuple[Trial, TrialResult]] = deque()
        self._has_run = False
        over = json.dumps([scenario.overrides, scenario.limits.timeout_s], sort_keys=True)
        path, target = str(Path(scenario.path).resolve()), str(scenario.target_of(arm))
        self.question = digest_of(kind, path, target, arm, over, *asked)
        self._texts = digest_of(*texts)
        self._facts = digest_of(
            __version__,
            platform.python_version(),  # prompts are cut from its library
            json.dumps([scenario.to_dict(), scenario.overrides], sort_keys=True),
            repr([(pack.name, pack.mode, [entry.rule for entry in pack.entries]) for pack in self._packs]),
        )
        self.identity = digest_of(kind, arm, *asked, self._facts, self._texts)

    def state(self) -> dict[str, str]:
        facts = {"toggles": f"#{self._texts}", f"scenario {self._scenario.path}": f"#{self._facts}"}
        return facts | arm_state(self._scenario, self.arm)

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    @property
    def rerun(self) -> int:
        return self._pool.rerun

    @abstractmethod
    def changed(self, trial: Trial) -> tuple[Scenario, Sequence[Toggle]]:
        """Return the scenario as the trial has it, and the fixes that are reverted besides the arm's own. Raises
        InvalidOption for options that do not go together."""

    @abstractmethod
    def result_of(self, trial: Trial, ended: ArmResult) -> TrialResult:
        """Return what an arm's end says of its trial. What it raises, :meth:`wait` raises."""

    def may_be_wrong(self, trial: Trial) -> bool:
        """Return True if the change alone can have made the scenario wrong, so that a trial is untestable where any
        other would end the search."""
        return False

    def start(self, trial: Trial) -> None:
        """Begin a trial. Options that do not go together make it untestable."""
        try:
            scenario, toggles = self.changed(trial)
            key = f"trial {trial.number}"
            run = ArmRun(key, scenario, self.arm, trial.seed, self._packs, (*self._own, *toggles))
            self._pool.start(run)
        except InvalidOption as error:
            self._refused.append((trial, TrialResult("untestable", None, 0.0, str(error))))
        else:
            self._trials[key] = trial

    def wait(self) -> tuple[Trial, TrialResult]:
        """Return the next trial to end. Raises ArmAtFault when the scenario itself is wrong, CannotRunHere when this
        machine lacks what it needs: every further trial would say the same."""
        if self._refused:
            return self._refused.popleft()
        try:
            ended = self._pool.wait()
        except ArmAtFault as fault:
            trial = self._trials.pop(fault.run.key)
            if not self.may_be_wrong(trial):
                raise
            return trial, TrialResult("untestable", None, 0.0, str(fault))
        trial, outcome = self._trials.pop(ended.run.key), ended.outcome
        if outcome.unavailable and not self._has_run and not self.may_be_wrong(trial):
            raise CannotRunHere(f"{self._scenario.path}: arm '{self.arm}': {outcome.detail}")
        self._has_run = self._has_run or not outcome.unavailable
        return trial, replace(self.result_of(trial, ended), not_engine_code=outcome.not_engine_code)

    def close(self) -> None:
        self._pool.close()


def texts_of(toggles: Iterable[Toggle]) -> list[str]:
    """Return the text of each toggle's file."""
    return [toggle.path.read_text(encoding="utf-8") for toggle in toggles]


def within(scenario: Scenario, timeout_s: float | None) -> Scenario:
    """Return the scenario with another limit of time; None leaves its own."""
    return scenario if timeout_s is None else replace(scenario, limits=replace(scenario.limits, timeout_s=timeout_s))

"""A fault of what is left of a scenario is a trial without a failure; one that is there from the start is said."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.base.trial import Trial, TrialResult
from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.loops.warm import ArmAtFault
from specdebug.campaign.shrink import ShrunkSource
from specdebug.scenario.grammar import Arm, Scenario, TokenPrompt, WorkloadGroup
from specdebug.verdict.outcome import Outcome

SCENARIO = Scenario("s", (WorkloadGroup("g0", TokenPrompt((1, 2))),), {"only": Arm("only")}, {})


FAILED = Outcome("fail", "nan@draft.logits", "draft.logits", "", 1)
PASSED = Outcome("pass", None, None, "", None)


class Pool:
    """Ends arms as it was told to."""

    capacity = 2

    def __init__(self) -> None:
        self.ends: deque[Any] = deque()
        self.started: list[ArmRun] = []

    def start(self, run: ArmRun) -> None:
        self.started.append(run)

    def wait(self) -> ArmResult:
        run, end = self.started.pop(0), self.ends.popleft()
        if isinstance(end, SpecDebugError):
            raise ArmAtFault(run, end)
        return ArmResult(run, end)


def test_a_fault_counts_only_once_something_could_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    monkeypatch.setattr("specdebug.campaign.trials.scenario.WarmPool", lambda *_: pool)
    source = ShrunkSource(SimpleNamespace(start=SCENARIO, arm="only", origin={}), (), ())  # type: ignore[arg-type]
    fault = SpecDebugError("the corpus 'stdlib' has 3 tokens")
    trials = [Trial(number, frozenset(), number) for number in range(4)]
    for trial in trials:
        source.leave(trial.number, SCENARIO)
        source.start(trial)
    pool.ends.extend([fault, FAILED, fault, PASSED])
    with pytest.raises(SpecDebugError, match="has 3 tokens"):
        source.wait()
    assert [source.wait() for _ in range(3)] == [
        (trials[1], TrialResult("fail", "nan@draft.logits", 0.0)),
        (trials[2], TrialResult("untestable", None, 0.0, str(fault))),
        (trials[3], TrialResult("pass", None, 0.0)),
    ]

"""A fault of what is left of a scenario is a trial without a failure; one that is there from the start is said."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.errors import SpecDebugError
from specdebug.loops.replay import ArmResult, ArmRun
from specdebug.loops.warm import ArmAtFault
from specdebug.minimise import Seen
from specdebug.scenario.grammar import Arm, Scenario, TokenPrompt, WorkloadGroup
from specdebug.shrink.trials import WarmOracle
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


def test_a_fault_counts_only_once_something_could_be_run() -> None:
    pool = Pool()
    oracle = WarmOracle(pool, SimpleNamespace(arm="only", origin={}), (), ())  # type: ignore[arg-type]
    fault = SpecDebugError("the corpus 'stdlib' has 3 tokens")
    for number in range(4):
        oracle.start(number, SCENARIO, number)
    pool.ends.extend([fault, FAILED, fault, PASSED])
    with pytest.raises(SpecDebugError, match="has 3 tokens"):
        oracle.wait()
    seen = [(1, Seen("nan@draft.logits", 0.0)), (2, Seen(None, 0.0)), (3, Seen(None, 0.0))]
    assert [oracle.wait() for _ in seen] == seen

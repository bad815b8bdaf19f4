"""Whatever becomes of a worker is a verdict for its arm, with all it measured; the others still report."""

from __future__ import annotations

import pytest

from specdebug.campaign.loops import replay as replaying
from specdebug.campaign.loops.replay import Choices, replay
from specdebug.scenario.grammar import Arm, Limits, Scenario, TokenPrompt, WorkloadGroup
from specdebug.workers.pool import WorkerPool
from tests.run.fakes import FakeLibrary

FATES = {
    "killed": None,
    "segfault": "crash:SIGSEGV",
    "hang": "hang",
    "hog": "oom",
    "quitter": "error@worker",
    "raiser": "error@worker",
    "good": None,
}
SCENARIO = Scenario(
    name="fates",
    workload=(WorkloadGroup("g0", TokenPrompt((1, 2))),),
    arms={name: Arm(name) for name in FATES},
    expect={},
    probes=(),
    limits=Limits(timeout_s=1.5, memory_mb=120),
)


def test_the_death_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "TARGET", "tests.workers.victims:play")
    with WorkerPool(3, preload=()) as pool:
        answer = replay(pool, FakeLibrary(), SCENARIO, Choices())
    outcomes = {result.run.arm: result.outcome for result in answer.results}
    assert {name: outcome.signature for name, outcome in outcomes.items()} == FATES
    assert {name: outcome.verdict for name, outcome in outcomes.items() if outcome.verdict != "fail"} == {
        "killed": "unknown",  # by whom is not known, but not by a bug
        "good": "pass",
    }
    assert all(outcome.requests[0].output_ids == (7,) for outcome in outcomes.values())
    assert "RuntimeError: oh no" in outcomes["raiser"].log_tail
    assert "sleep_forever" in outcomes["hang"].log_tail

"""An arm that should have failed and passed says what ran, what looked, and what to try next."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.report.explain import explain
from specdebug.scenario.grammar import AcceptOracle, Arm, Expectation, OracleSpec, Scenario
from specdebug.scenario.library import Library, engine_sites, live_in
from specdebug.scenario.packs import ProbePack
from specdebug.verdict.outcome import Metrics, Outcome, RequestResult, Tie

FAILS = Expectation("fail")
PASSED = Outcome(
    "pass",
    None,
    None,
    "",
    None,
    metrics=Metrics(steps=45, accept_hit=2.0, accept_cold=2.5),
    reverted_hits={"27360": {"27360#1": 80}},
    reached_sites={"verify.logits": 40, "draft.prefix_tail": 0},
    requests=(RequestResult("g0.0", "g0", ties=(Tie(3, 0.06, 0.25, 40, 41),), cold_accept_lengths=(2, 3)),),
    looks={"lossless": 4, "draft_kv": 8},
)


@pytest.fixture(scope="module")
def pack() -> ProbePack:
    (found,) = Library().packs(("default",))
    return found


def passed(
    pack: ProbePack, expectation: Expectation | None = FAILS, outcome: Outcome = PASSED, **engine: Any
) -> ArmResult:
    scenario = Scenario(
        "weak",
        workload=(),
        engine=engine,
        arms={"reverted": Arm("reverted", revert=(27360,))},
        oracles=OracleSpec(accept=AcceptOracle(0.7)),
        expect={},
        path=Path("weak file.yaml"),
    )
    toggles: Any = (SimpleNamespace(pr=27360), SimpleNamespace(pr=27338))
    run = ArmRun("reverted", scenario, "reverted", 0, (pack,), toggles, expectation)
    return ArmResult(run, outcome)


def test_what_ran_and_looked_is_told(pack: ProbePack) -> None:
    why = explain(passed(pack))
    assert why is not None
    sites = live_in(pack, engine_sites())
    assert why.findings[0] == "reverted lines of 27360 ran 80 times"
    assert why.findings[1].startswith(f"probes: 1 of {len(sites)} enabled sites reached, 40 times in all; never at ")
    assert why.probes.missed == tuple(sorted(sites - {"verify.logits"}))
    assert why.findings[2] == (
        "oracles that looked: lossless 4 times, draft_kv 8 times, pools 45 times, ends 45 times, accept once; "
        "that did not: guards"
    )
    assert why.findings[3] == (
        "nearest to a failure: g0.0 output 3 was the reference's second choice by 0.06 logits (0.25 would be wrong); "
        "accept length 2.00 after a cache hit, 2.50 cold (less than 0.7 of it fails)"
    )
    assert why.advice[0].startswith("try: specdebug flake 'weak file.yaml' --arm reverted --revert 27338 (")


def test_advice_is_given_only_where_it_changes_something(pack: ProbePack) -> None:
    told = " ".join(passed_advice(pack, memory={"fill": "zeros"}))
    assert "fill: garbage" in told
    assert "guards: true" in told
    assert "--mode record" not in told  # the pack records already
    assert "oracles:" not in told  # all are on
    quiet = " ".join(passed_advice(pack, memory={"guards": True}))
    assert "garbage" not in quiet
    assert "guards" not in quiet
    assert "--mode record" in " ".join(passed_advice(dataclasses.replace(pack, mode="assert")))


def passed_advice(pack: ProbePack, **engine: Any) -> list[str]:
    why = explain(passed(pack, **engine))
    assert why is not None
    return why.advice

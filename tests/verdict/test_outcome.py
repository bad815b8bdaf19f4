"""The verdict table, the rule that names a failure, and the trip through JSON."""

import json
from typing import Any

import pytest

from specdebug.verdict.outcome import (
    EXIT_CODES,
    RANK,
    Evidence,
    Metrics,
    Outcome,
    RequestResult,
    Tie,
    Violation,
    decide,
    merge_violations,
)

SOUND: dict[str, Any] = {"reverts": {}, "probes_enabled": 1, "sites_reached": 9, "generated": 40}
FOUND = [Violation("nan", "draft.logits", 3)]


@pytest.mark.parametrize(
    ("found", "changed", "verdict", "reason"),
    [
        ([], {}, "pass", None),
        (FOUND, {}, "fail", None),
        ([], {"reverts": {"27338": {"27338#1": 2}}}, "pass", None),
        ([], {"reverts": {"27338": {"27338#1": 0, "27338#2": 1}}}, "pass", None),
        ([], {"reverts": {"7": {"7#1": 0}}}, "unknown", "fix 7 was reverted, but its lines never ran"),
        ([], {"reverts": {"7": {}}}, "unknown", "fix 7 was to be reverted, and nothing shows that its lines ran"),
        ([], {"reverts": {"1": {"1#1": 4}, "2": {"2#1": 0}}}, "unknown", "fix 2 was reverted"),
        (FOUND, {"reverts": {"2": {"2#1": 0}}}, "fail", "fix 2 was reverted"),
        ([], {"sites_reached": 0}, "unknown", "none of the enabled probes was reached"),
        ([], {"sites_reached": 0, "probes_enabled": 0}, "pass", None),
        ([], {"generated": 0}, "unknown", "nothing was generated"),
        (FOUND, {"generated": 0}, "fail", "nothing was generated"),
        ([], {"cut_short": "interrupted before it was done"}, "unknown", "interrupted"),
        ([], {"cut_short": "not done", "reverts": {"1": {"a": 0}}, "generated": 0}, "unknown", "not done"),
        (FOUND, {"cut_short": "not done within 9 s"}, "fail", "within 9 s"),
        ([], {"lost": {"specdebug cannot look at the books": False}}, "unknown", "cannot look at the books"),
        (FOUND, {"lost": {"specdebug cannot look at the books": False}}, "fail", "cannot look at the books"),
        (FOUND, {"lost": {"specdebug cannot stand in for it": True}}, "unknown", "cannot stand in"),
        ([], {"impossible": "no fit", "generated": 0, "sites_reached": 0}, "unknown", "no fit"),
    ],
)
def test_verdict_table(found: list[Violation], changed: dict[str, Any], verdict: str, reason: str | None) -> None:
    got, reasons = decide(found, Evidence(**{**SOUND, **changed}))
    assert got == verdict
    assert len(reasons) == (reason is not None)
    if reason is not None:
        assert reason in reasons[0]


def test_exit_codes() -> None:
    assert EXIT_CODES == {"pass": 0, "fail": 1, "unknown": 125}


def named(*violations: Violation) -> list[str]:
    return [violation.signature for violation in merge_violations(violations)]


def test_within_a_step_the_cause_comes_before_its_effects() -> None:
    ranked = sorted(RANK, key=lambda kind: RANK[kind])
    backwards = [Violation(kind, "x", 5) for kind in reversed(ranked)]
    assert [RANK[v.kind] for v in merge_violations(backwards)] == sorted(RANK.values())
    assert named(*backwards)[0] == "guard@x"


def test_one_signature_is_one_violation_with_its_first_step_and_all_counts() -> None:
    merged = merge_violations(
        [Violation("nan", "x", 7, "later", 2), Violation("nan", "x", 4, "first", 3), Violation("inf", "x", 5)]
    )
    assert [(v.signature, v.step, v.detail, v.count) for v in merged] == [("nan@x", 4, "first", 5), ("inf@x", 5, "", 1)]


def test_json_round_trip() -> None:
    outcome = Outcome(
        verdict="fail",
        signature="guard@draft.kv_indices->draft.kv_indptr",
        site="draft.kv_indices->draft.kv_indptr",
        detail="overran",
        where_step=7,
        violations=(Violation("guard", "draft.kv_indices->draft.kv_indptr", 7, "overran", 3, {"bytes": 12}),),
        reasons=("none",),
        notes=("a note",),
        metrics=Metrics(
            steps=4, generated_tokens=9, accept_mean=2.5, accept_hit=2.0, accept_cold=2.5, stages_s={"run": 1.5}
        ),
        trace_hash="ab",
        reverted_hits={"27338": {"27338#1": 4}},
        reached_sites={"draft.logits": 3},
        requests=(
            RequestResult("a.0", "a", 5, 4, (1, 2), "xy", "length", (2, 3), (3,), (Tie(1, 0.0005, 0.001, 2, 7),)),
            RequestResult("a.1", "a"),
        ),
        log_tail="log",
    )
    data = json.loads(json.dumps(outcome.to_dict(), allow_nan=False))
    assert Outcome.from_dict(data) == outcome
    assert data["violations"][0]["signature"] == outcome.signature
    (tie,) = data["requests"][0]["ties"]
    assert tie == {"position": 1, "margin": 0.0005, "allowed": 0.001, "token": 2, "preferred": 7}
    assert data["requests"][0]["accept_mean"] == 2.5
    assert data["requests"][0]["cold_accept_mean"] == 3.0
    assert data["requests"][1]["accept_mean"] is None

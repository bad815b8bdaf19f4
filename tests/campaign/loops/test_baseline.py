"""Baselines: what is kept in the file, what is a loss, and what is only told."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.campaign.loops.baseline import Baseline, saveable
from specdebug.campaign.loops.compare import Against, Comparison, compare
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, plan
from specdebug.report.compare import comparison_line
from specdebug.scenario.grammar import AcceptOracle, Arm, OracleSpec, Scenario, TokenPrompt, WorkloadGroup
from specdebug.verdict.outcome import Metrics, Outcome, RequestResult, Violation, with_violations
from tests.run.fakes import FakeLibrary

SCENARIO = Scenario(
    name="sample",
    engine={"model": "tiny", "speculative": {"num_steps": 3}},
    workload=(
        WorkloadGroup("g", TokenPrompt((1, 2))),
        WorkloadGroup("plain", TokenPrompt((1, 2)), speculative=False),
    ),
    arms={"base": Arm("base")},
    expect={},
    seed=7,
)
GOOD = (3, 4, 1, 4) * 10
POOR = (1, 2, 1, 2) * 10


def run_of(scenario: Scenario = SCENARIO, **choices: Any) -> ArmRun:
    (run,) = plan(scenario, Choices(**choices), FakeLibrary())
    return run


def outcome(lengths: tuple[int, ...], *, speed: float = 100.0, cpu: str = "Some Processor", **more: Any) -> Outcome:
    requests = (RequestResult("g.0", "g", output_ids=(1, 2, 3), accept_lengths=lengths), RequestResult("p.0", "plain"))
    stack = {"name": "CPU", "arithmetic": {"cpu": cpu}}
    metrics = Metrics(tokens_per_s=speed)
    whole = Outcome("pass", None, None, "", None, requests=requests, complete=True, stack=stack, metrics=metrics)
    return dataclasses.replace(whole, **more)


@pytest.fixture
def baseline(tmp_path: Path) -> Baseline:
    """Of a good run, through its file."""
    path = tmp_path / "b.json"
    path.write_text(Baseline(path, {}).updated([ArmResult(run_of(), outcome(GOOD))]).text())
    return Baseline.read(path)


def with_drop(drop: float) -> Scenario:
    return dataclasses.replace(SCENARIO, oracles=OracleSpec(accept=AcceptOracle(drop=drop)))


def test_a_loss_turns_the_verdict_and_says_what_was_wanted(baseline: Baseline) -> None:
    judged, against = baseline.judge(run_of(), outcome(POOR))
    assert (judged.verdict, judged.signature, against.status) == ("fail", "accept-drop@g", "lost")
    assert judged.detail.startswith("requests of group g accept 1.50 tokens a verify over 40 verifies, 3.00 in the")
    assert judged.violations[0].data["got"] == 1.5
    assert judged.violations[0].data["verifies"] == 40


@pytest.mark.parametrize(
    ("drop", "lengths", "status"),
    [(0.5, POOR, "kept"), (0.49, POOR, "lost"), (0.0, POOR, "lost"), (1.0, POOR, "kept"), (0.0, GOOD, "kept")],
)
def test_drop_takes_the_interval_s_place(
    baseline: Baseline, drop: float, lengths: tuple[int, ...], status: str
) -> None:
    """Whatever is reverted; probes, limits and oracles are no part of what must be the same."""
    other = dataclasses.replace(with_drop(drop), description="x", probes=())
    assert baseline.judge(run_of(other, reverts=(27338,)), outcome(lengths))[1].status == status


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ({"seed": 8}, "has scenario sample with seed 7, not 8"),
        ({"engine": {"dtype": "bfloat16"}}, "has scenario sample with dtype 'float32', not 'bfloat16'"),
        ({"engine": {"page_size": 4}}, "has scenario sample with options '', not 'page_size=4'"),
    ],
)
def test_a_run_of_another_kind_has_no_baseline(baseline: Baseline, choices: dict[str, Any], why: str) -> None:
    judged, against = baseline.judge(run_of(**choices), outcome(POOR))
    assert (judged.verdict, against.status) == ("pass", "no baseline")
    assert why in against.why


def test_another_scenario_and_a_changed_one_have_no_baseline(baseline: Baseline) -> None:
    other = dataclasses.replace(SCENARIO, name="other")
    assert baseline.judge(run_of(other), outcome(POOR))[1].why.endswith("has no scenario other")
    changed = dataclasses.replace(SCENARIO, engine={"model": "tiny", "speculative": {"num_steps": 2}})
    _, against = baseline.judge(run_of(changed), outcome(POOR))
    assert against.status == "no baseline"
    assert "changed since" in against.why


@pytest.mark.parametrize(
    ("speed", "cpu", "line"),
    [
        (60.0, "Some Processor", "baseline: 60 tokens/s, baseline 100"),
        (40.0, "Some Processor", "slower: 40 tokens/s, baseline 100"),
        (40.0, "Other", "baseline: 40 tokens/s, baseline 100, on another machine"),
    ],
)
def test_speed_is_told_and_never_a_verdict(baseline: Baseline, speed: float, cpu: str, line: str) -> None:
    judged, against = baseline.judge(run_of(), outcome(GOOD, speed=speed, cpu=cpu))
    assert (judged.verdict, against.lines[-1]) == ("pass", line)


def test_a_file_says_the_interval_and_is_the_same_each_time(baseline: Baseline) -> None:
    assert baseline.text() == baseline.path.read_text()
    (entry,) = json.loads(baseline.text())["entries"]
    assert entry["groups"]["g"]["low"] < 3.0 < entry["groups"]["g"]["high"]
    assert entry["tokens_per_s"] == {"mean": 100.0, "low": 50.0, "high": 200.0}


def _version(plain: dict[str, Any]) -> None:
    plain["version"] = 2


def _twice(plain: dict[str, Any]) -> None:
    plain["entries"] *= 2


def _seedless(plain: dict[str, Any]) -> None:
    plain["entries"][0]["seed"] = "x"


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda plain: plain.pop("format"), "b.json:1:1: is no baseline; --save-baseline writes one"),
        (_version, "b.json:3:13: version is 2; this specdebug reads version 1"),
        (_twice, "is of the same run as one before it"),
        (_seedless, r"b.json:9:12: entries\[0\].seed must be a whole number"),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(
    baseline: Baseline, spoil: Callable[[dict[str, Any]], object], complaint: str
) -> None:
    plain = json.loads(baseline.text())
    spoil(plain)
    baseline.path.write_text(json.dumps(plain, indent=1))
    with pytest.raises(ContentError, match=complaint):
        Baseline.read(baseline.path)


def test_only_what_came_to_its_end_as_it_should_is_saved() -> None:
    failed = with_violations(outcome(POOR), [Violation("mismatch", "x", 1)])
    results = [ArmResult(run_of(), each) for each in (outcome(GOOD), outcome(GOOD, complete=False), failed)]
    kept, left = saveable(results)
    assert kept == results[:1]
    assert left == ["sample: arm base did not come to its end", "sample: arm base came to fail"]


def test_two_scenarios_of_one_name_are_refused() -> None:
    twin = dataclasses.replace(SCENARIO, path=Path("twin.yaml"))
    with pytest.raises(SpecDebugError, match=r"twin.yaml: both are named sample"):
        saveable([ArmResult(run_of(one), outcome(GOOD)) for one in (SCENARIO, twin)])


def compare_outcome(*requests: RequestResult, verdict: Any = "pass", trace: str = "t") -> Outcome:
    return Outcome(verdict, None, None, "", None, requests=requests, trace_hash=trace)


def request(rid: str, *ids: int) -> RequestResult:
    return RequestResult(rid, "g", 4, 0, ids, accept_lengths=(2, 3))


def compared(left: Outcome, right: Outcome) -> Comparison:
    return compare(("one", "two"), (left, right), lambda ids: "/".join(map(str, ids)))


def drafted(*lengths: int) -> Outcome:
    return compare_outcome(RequestResult("a", "g", 4, 0, (1, 2), accept_lengths=lengths * 10))


def test_a_group_that_drafts_worse_is_named_and_its_outputs_agree_still() -> None:
    comparison = compared(drafted(3, 4, 2, 4), drafted(1))
    assert (comparison.agree, comparison.exit_code) == (True, 0)
    line = comparison_line(comparison)
    assert line.startswith("outputs and verdicts agree; accept lengths differ: g 3.25 (one) and 1.00 (two)")
    (told,) = comparison.to_dict()["accept_lengths"]
    assert (told["group"], told["left"], told["right"], told["differ"]) == ("g", 3.25, 1.0, True)


def test_a_loss_against_a_baseline_is_a_failure_even_where_both_arms_have_it() -> None:
    both = (drafted(1), drafted(1))
    against = (Against("b.json", "lost"), Against("b.json", "no baseline", "told"))
    comparison = compare(("one", "two"), both, str, against)
    assert (comparison.agree, comparison.losing, comparison.exit_code) == (True, ("one",), 1)
    assert "; one lost accept length against the baseline" in comparison_line(comparison)
    assert comparison.to_dict()["baseline"][1]["status"] == "no baseline"


def test_other_outputs_differ_and_both_texts_are_shown_from_there_on() -> None:
    comparison = compared(compare_outcome(request("a", 1, 2, 3)), compare_outcome(request("a", 1, 9)))
    assert comparison.exit_code == 1
    (difference,) = comparison.requests
    assert (difference.position, difference.left_text, difference.right_text) == (1, "2/3", "9")


def test_an_arm_that_cannot_be_run_here_leaves_nothing_to_compare() -> None:
    lacking = dataclasses.replace(compare_outcome(verdict="unknown"), detail="FlashInfer is missing", unavailable=True)
    for left, right in ((lacking, compare_outcome(request("a", 1))), (lacking, lacking)):
        comparison = compared(left, right)
        assert (comparison.agree, comparison.exit_code) == (False, 125)
        assert "one cannot be run here: FlashInfer is missing" in comparison_line(comparison)

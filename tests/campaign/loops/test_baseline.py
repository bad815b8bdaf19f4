"""Baselines: what is kept in the file, what is a loss, and what is only told."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.campaign.loops.baseline import Baseline, lines_of, saveable
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, plan
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


def test_the_same_run_keeps_what_it_had(baseline: Baseline) -> None:
    judged, against = baseline.judge(run_of(), outcome(GOOD))
    assert judged == outcome(GOOD)
    assert (against.status, [group.status for group in against.groups]) == ("kept", ["kept"])
    assert [group.group for group in against.groups] == ["g"], "a group without drafts has no accept length"


def test_a_loss_turns_the_verdict_and_says_what_was_wanted(baseline: Baseline) -> None:
    judged, against = baseline.judge(run_of(), outcome(POOR))
    assert (judged.verdict, judged.signature, against.status) == ("fail", "accept-drop@g", "lost")
    assert judged.detail.startswith("requests of group g accept 1.50 tokens a verify over 40 verifies, 3.00 in the")
    assert judged.violations[0].data["got"] == 1.5
    assert judged.violations[0].data["verifies"] == 40


def test_a_loss_comes_after_what_else_was_found(baseline: Baseline) -> None:
    broken = with_violations(outcome(POOR), [Violation("mismatch", "draft_kv", 3, "told")])
    judged, _ = baseline.judge(run_of(), broken)
    assert (judged.signature, judged.detail) == ("mismatch@draft_kv", "told")
    assert [each.signature for each in judged.violations] == ["mismatch@draft_kv", "accept-drop@g"]


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


def test_too_few_verifies_are_not_judged_and_none_at_all_are_a_loss(baseline: Baseline) -> None:
    judged, against = baseline.judge(run_of(), outcome((1, 1, 1)))
    assert judged.verdict == "pass"
    assert "not judged (fewer than 8)" in against.lines[0]
    assert baseline.judge(run_of(), outcome(()))[0].signature == "accept-drop@g"


def test_more_than_the_interval_is_told_and_no_failure(baseline: Baseline) -> None:
    judged, against = baseline.judge(run_of(), outcome((4,) * 40))
    assert (judged.verdict, against.status, against.groups[0].status) == ("pass", "kept", "more")


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


def test_a_run_cut_short_is_not_compared(baseline: Baseline) -> None:
    judged, against = baseline.judge(run_of(), outcome(POOR, complete=False))
    assert (judged.verdict, against.status) == ("pass", "not compared")


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


@pytest.mark.parametrize(
    ("stack", "same"),
    [
        ({"name": "http://127.0.0.1:25999, version 1", "machine": "Some Processor"}, True),
        ({"name": "http://127.0.0.1:31007, version 1", "machine": "Some Processor"}, True),
        ({"name": "http://127.0.0.1:25999, version 1", "machine": "Other"}, False),
    ],
)
def test_a_server_s_port_is_no_machine(stack: dict[str, str], same: bool, tmp_path: Path) -> None:
    first = outcome(GOOD, stack={"name": "http://127.0.0.1:25999, version 1", "machine": "Some Processor"})
    held = Baseline(tmp_path / "b.json", {}).updated([ArmResult(run_of(), first)])
    _, against = held.judge(run_of(), outcome(GOOD, stack=stack))
    assert against.same_machine == same
    assert ("on another machine" in " ".join(against.lines)) != same


def test_an_update_replaces_its_own_entries_and_keeps_others(baseline: Baseline) -> None:
    other = ArmResult(run_of(dataclasses.replace(SCENARIO, name="other")), outcome(GOOD))
    both = baseline.updated([other, ArmResult(run_of(), outcome(POOR))])
    assert {key.scenario: entry.groups["g"].accept for key, entry in both.entries.items()} == {
        "sample": 1.5,
        "other": 3.0,
    }


def test_a_file_says_the_interval_and_is_the_same_each_time(baseline: Baseline) -> None:
    assert baseline.text() == baseline.path.read_text()
    (entry,) = json.loads(baseline.text())["entries"]
    assert entry["groups"]["g"]["low"] < 3.0 < entry["groups"]["g"]["high"]
    assert entry["tokens_per_s"] == {"mean": 100.0, "low": 50.0, "high": 200.0}


@pytest.mark.parametrize("lengths", [(), (1,), (4,), (4, 4)])
def test_a_group_of_hardly_any_verifies_is_written_and_read_again(lengths: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(Baseline(path, {}).updated([ArmResult(run_of(), outcome(lengths))]).text())
    _, against = Baseline.read(path).judge(run_of(), outcome(lengths))
    assert (against.status, against.groups[0].status) == ("kept", "not judged")


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


def test_one_line_counts_all_runs_and_names_those_not_kept(baseline: Baseline) -> None:
    results = [
        ArmResult(run, *baseline.judge(run, outcome(lengths)))
        for run, lengths in ((run_of(), GOOD), (run_of(), POOR), (run_of(seed=8), GOOD))
    ]
    assert list(lines_of(results)) == [
        "against the baseline: 1 kept; 1 lost (sample::base); 1 no baseline (sample::base)"
    ]
    assert list(lines_of([ArmResult(run_of(), outcome(GOOD))])) == []

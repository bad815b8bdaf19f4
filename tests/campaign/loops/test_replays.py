"""Several scenarios at once: what is selected, how results add up, and what survives an interrupt."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.base.yamlio import parse_yaml
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, PlannedRuns, Replay
from specdebug.campaign.loops.replays import (
    LastFailed,
    Replays,
    labels_of,
    only_failed,
    parse_expression,
    plan_all,
    replay_all,
)
from specdebug.scenario.checks import scenario_of
from specdebug.scenario.grammar import Expectation, Scenario
from specdebug.verdict.outcome import Outcome
from specdebug.workers.job import WorkerEnd
from tests.run.fakes import FakeLibrary, FakePool, good_run


def scenario(path: str, *arms: str) -> Scenario:
    listed = [f"  {name}: {{}}" for name in arms], [f"  {name}: {{verdict: pass}}" for name in arms]
    lines = [f"name: {Path(path).stem}", "workload:", "  - {prompt: {token_ids: [1, 2]}}", "arms:", *listed[0]]
    return scenario_of(parse_yaml("\n".join([*lines, "expect:", *listed[1]]), path), None)


ONE, TWO, TWIN = scenario("a/one.yaml", "x", "y"), scenario("a/two.yaml", "x"), scenario("b/two.yaml", "x")


def planned(*scenarios: Scenario, expression: str | None = None, **choices: Any) -> list[PlannedRuns]:
    read = None if expression is None else parse_expression(expression)
    return plan_all(scenarios, Choices(**choices), FakeLibrary(), read)  # type: ignore[arg-type]


def keys(plans: list[PlannedRuns]) -> list[str]:
    return [f"{each.scenario.path}::{run.arm}" for each in plans for run in each.runs]


def run(plans: list[PlannedRuns], script: Any = good_run, interrupt_at: str | None = None) -> tuple[Replays, FakePool]:
    pool = FakePool(script, interrupt_at)
    return replay_all(pool, FakeLibrary(), plans), pool  # type: ignore[arg-type]


def test_an_expression_selects_arms_and_leaves_out_scenarios() -> None:
    assert keys(planned(ONE, TWO, expression="one and y or two")) == ["a/one.yaml::y", "a/two.yaml::x"]
    assert keys(planned(ONE, TWO, expression="two::x")) == ["a/two.yaml::x"]
    with pytest.raises(SpecDebugError, match="-k 'three' selects no arm; there are one::x, one::y, two::x"):
        planned(ONE, TWO, expression="three")


def test_an_arm_that_is_selected_keeps_its_expectation() -> None:
    (only,) = planned(ONE, expression="y")
    assert [each.expectation for each in only.runs] == [Expectation()]


def test_of_several_every_run_has_a_key_of_its_own() -> None:
    assert labels_of([ONE, TWO, TWIN]) == ["one", "a/two.yaml", "b/two.yaml"]
    _, pool = run(planned(ONE, TWO, TWIN))
    assert [job.name for job in pool.jobs] == ["one::x", "one::y", "a/two.yaml::x", "b/two.yaml::x"]
    _, alone = run(planned(ONE))
    assert [job.name for job in alone.jobs] == ["x", "y"]


def test_all_arms_run_and_each_scenario_has_its_answer() -> None:
    answer, _ = run(planned(ONE, TWO))
    assert [(each.scenario.name, [r.run.arm for r in each.results]) for each in answer.replays] == [
        ("one", ["x", "y"]),
        ("two", ["x"]),
    ]
    assert (answer.exit_code, answer.missing, answer.interrupted, answer.trouble) == (0, 0, False, None)
    assert all(0 <= each.wall_s <= answer.wall_s for each in answer.replays)


def ended(path: str, verdict: Any, interrupted: bool = False) -> Replay:
    its = scenario(path, "x")
    outcome = Outcome(verdict, None, None, "", None)
    return Replay(its, (ArmResult(ArmRun("x", its, "x", 0, expectation=Expectation()), outcome),), 1.0, interrupted)


PASS, FAIL, UNKNOWN = (ended("a.yaml", verdict) for verdict in ("pass", "fail", "unknown"))


@pytest.mark.parametrize("order", list(itertools.permutations((PASS, FAIL, UNKNOWN))))
def test_the_worst_exit_code_counts(order: tuple[Replay, ...]) -> None:
    assert Replays(order, 1.0).exit_code == 1
    assert Replays(tuple(each for each in order if each is not FAIL), 1.0).exit_code == 125
    assert Replays((PASS,), 1.0).exit_code == 0
    assert Replays(order, 1.0, interrupted=True).exit_code == 130
    assert Replays(order, 1.0, trouble=CannotRunHere("no")).exit_code == 125
    assert Replays(order, 1.0, trouble=SpecDebugError("no")).exit_code == 2


def test_an_interrupt_keeps_what_was_finished() -> None:
    answer, pool = run(planned(ONE, TWO, TWIN), interrupt_at="a/two.yaml::x")
    assert [job.name for job in pool.jobs] == ["one::x", "one::y", "a/two.yaml::x"]
    one, two = answer.replays
    assert ([r.outcome.verdict for r in one.results], one.interrupted, one.exit_code) == (["pass", "pass"], False, 0)
    assert (two.interrupted, two.exit_code, two.results[0].outcome.interrupted) == (True, 130, True)
    assert (answer.missing, answer.interrupted, answer.exit_code) == (1, True, 130)


def test_an_interrupted_scenario_alone_lists_what_had_not_begun() -> None:
    answer, _ = run(planned(ONE), interrupt_at="x")
    (alone,) = answer.replays
    assert ([r.run.arm for r in alone.results], alone.interrupted, alone.exit_code) == (["x", "y"], True, 130)
    assert answer.missing == 1


def test_a_scenario_that_a_worker_finds_at_fault_costs_the_rest_but_not_what_has_run() -> None:
    def script(job: Any) -> tuple[list[dict[str, Any]], WorkerEnd]:
        if job.name.startswith("two"):
            return [{"event": "usage", "message": "no such model"}], WorkerEnd("done", 0, 0.1, 1.0, "")
        return good_run(job)

    answer, _ = run(planned(ONE, TWO), script)
    assert [each.scenario.name for each in answer.replays] == ["one"]
    assert "no such model" in str(answer.trouble)
    assert (answer.missing, answer.exit_code) == (1, 2)


def test_what_failed_last_time_is_run_and_all_where_nothing_did() -> None:
    record = LastFailed()
    plans, said = only_failed(planned(ONE, TWO), record)
    assert (len(keys(plans)), said) == (3, "no failure is recorded here; running all")
    results = [ArmResult(each.runs[-1], Outcome("fail", None, None, "", None)) for each in plans]
    record.take(results)
    plans, said = only_failed(planned(ONE, TWO, TWIN), record)
    assert (keys(plans), said) == (["a/one.yaml::y", "a/two.yaml::x"], "running 2 arms that failed last time")
    plans, said = only_failed(planned(TWIN), record)
    assert (keys(plans), said) == (["b/two.yaml::x"], "none of these is among the 2 recorded failures; running all")

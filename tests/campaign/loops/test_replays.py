"""Several scenarios at once: what is selected, how results add up, and what survives an interrupt."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from specdebug.base.errors import CannotRunHere, SpecDebugError
from specdebug.base.yamlio import parse_yaml
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Choices, PlannedRuns, Replay
from specdebug.campaign.loops.replays import (
    NAME,
    LastFailed,
    Replays,
    keep_failed,
    only_failed,
    parse_expression,
    plan_all,
    replay_all,
)
from specdebug.scenario.checks import load_scenario, scenario_of
from specdebug.scenario.grammar import Expectation, Scenario
from specdebug.verdict.outcome import Outcome
from specdebug.workers.job import WorkerEnd
from specdebug.workers.records import RecordError
from tests.run.fakes import FakeLibrary, FakePool, good_run
from tests.workers.disks import full


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


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("cache", True),
        ("CACHE-H", True),
        ("cache_hit::zero", True),
        ("nothing", False),
        ("not nothing", True),
        ("not cache or zero", True),
        ("not (cache or zero)", False),
        ("cache and not zero", False),
        ("nothing or cache and zero", True),
        ("(nothing or cache) and nothing", False),
        ("not not cache", True),
        ("nor", False),
        ("android or cache", True),
        ("((((cache))))", True),
    ],
)
def test_an_expression_holds_for_names(text: str, holds: bool) -> None:
    assert parse_expression(text).holds(("cache-hit", "zero_fill", "cache_hit::zero_fill")) is holds


@pytest.mark.parametrize(
    ("text", "column"),
    [("", 1), ("cache and", 10), ("and cache", 1), ("(cache", 1), ("cache)", 6), ("a or ()", 6), ("a (b)", 1)],
)
def test_a_wrong_selection_is_refused_with_its_column(text: str, column: int) -> None:
    with pytest.raises(SpecDebugError, match=f"column {column}: "):
        parse_expression(text)


@pytest.mark.parametrize("text", ["(" * 5000 + "cache" + ")" * 5000, "not " * 5000 + "cache"], ids=["(", "not"])
def test_a_selection_that_is_nested_too_deep_is_refused(text: str) -> None:
    with pytest.raises(SpecDebugError, match="nested"):
        parse_expression(text)


MINI = Path(__file__).parents[2] / "cli" / "mini.yaml"
SCENARIO = load_scenario(MINI)


def result(arm: str, verdict: Any, expected: Any = "pass") -> ArmResult:
    expectation = None if expected is None else Expectation(expected)
    return ArmResult(ArmRun(arm, SCENARIO, arm, 0, expectation=expectation), Outcome(verdict, None, None, "", None))


def keep(folder: Path, *results: ArmResult) -> str:
    return keep_failed(folder, results, lambda: None)


def test_an_arm_stays_until_it_does_as_it_should(tmp_path: Path) -> None:
    def failed() -> dict[str, list[str]]:
        return LastFailed.read(tmp_path).arms

    keep(tmp_path, result("fixed", "fail"), result("plain", "unknown"))
    assert failed() == {str(MINI.resolve()): ["fixed", "plain"]}
    keep(tmp_path, result("fixed", "pass"), result("positions", "fail", "fail"))
    assert failed() == {str(MINI.resolve()): ["plain"]}
    record = LastFailed.read(tmp_path)
    assert record.has(result("plain", "pass").run)
    assert not record.has(result("fixed", "pass").run)
    assert record.files == (str(MINI.resolve()),)
    keep(tmp_path, result("plain", "pass", None))
    assert failed() == {}
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"a": 1}', '{"a": [1]}', '"x"', "\xff"])
def test_a_damaged_record_is_named_and_made_anew_by_the_next_replay(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text, encoding="latin-1")
    with pytest.raises(RecordError, match=rf"{NAME}.*: the record of failures is damaged: .*; remove it") as caught:
        LastFailed.read(tmp_path)
    assert caught.value.exit_code == 2
    assert "is damaged" in keep(tmp_path, result("fixed", "fail"))
    assert LastFailed.read(tmp_path).arms == {str(MINI.resolve()): ["fixed"]}


def test_a_disk_that_is_full_leaves_the_record_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, result("fixed", "fail"))
    with full(monkeypatch, 99):
        assert "No space left" in keep(tmp_path, result("positions", "fail"))
    assert [file.name for file in tmp_path.iterdir()] == [NAME]
    assert LastFailed.read(tmp_path).arms == {str(MINI.resolve()): ["fixed"]}

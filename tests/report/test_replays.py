"""The summary of several scenarios."""

from __future__ import annotations

import dataclasses
import json

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.loops.replay import ArmResult, ArmRun, Replay
from specdebug.campaign.loops.replays import Replays
from specdebug.report.document import replay_document, to_json
from specdebug.report.replays import render_replays, replays_document, replays_line, replays_summary
from specdebug.scenario.grammar import Expectation
from specdebug.verdict.outcome import Outcome
from tests.report.html.samples import SCENARIO
from tests.run.fakes import text_of


def replay(name: str, *verdicts: str, interrupted: bool = False) -> Replay:
    scenario = dataclasses.replace(SCENARIO, name=name)
    run = ArmRun("fixed", scenario, "fixed", 0, expectation=Expectation())
    outcomes = [Outcome(verdict, "nan@x" if verdict == "fail" else None, None, "", None) for verdict in verdicts]  # type: ignore[arg-type]
    return Replay(scenario, tuple(ArmResult(run, outcome) for outcome in outcomes), 1.5, interrupted)


GOOD, BAD, OPEN = replay("good", "pass", "pass"), replay("[b]ad", "pass", "fail"), replay("open", "unknown")


def test_the_closing_line_counts_scenarios_and_says_what_did_not_run() -> None:
    assert replays_line(Replays((GOOD,), 2.0)) == "1 scenario: 1 as they should (2.0 s)"
    assert replays_line(Replays((GOOD, BAD, OPEN), 2.0)) == (
        "3 scenarios: 1 as they should, 1 not, 1 without a verdict (2.0 s)"
    )
    cut = Replays((GOOD, replay("late", "unknown", interrupted=True)), 2.0, missing=3, interrupted=True)
    assert replays_line(cut).endswith("1 as they should, 1 without a verdict (2.0 s); 3 arms did not run; interrupted")


def test_a_row_for_each_and_a_story_for_what_went_wrong() -> None:
    text = text_of(render_replays(Replays((GOOD, BAD, OPEN), 2.0)))
    story, table = text.split("what did not do as it should")
    assert "[b]ad: 1 of 2 arms as expected" in story
    assert "good: " not in story
    rows = [line.removeprefix("│ ").split() for line in table.splitlines()[1:4]]
    assert [row[:4] for row in rows] == [
        ["good", "2", "of", "2"],
        ["[b]ad", "1", "of", "2"],
        ["open", "0", "of", "1"],
    ]
    assert rows[1][-3:] == ["fixed:", "fail", "nan@x"]


def test_the_document_holds_each_scenario_s_own() -> None:
    answer = Replays((GOOD, BAD), 2.0, missing=1, trouble=SpecDebugError("no model"))
    document = json.loads(to_json(replays_document(answer)))
    assert document["scenarios"] == json.loads(to_json([replay_document(GOOD), replay_document(BAD)]))
    assert {key: document[key] for key in ("exit_code", "interrupted", "missing", "trouble")} == {
        "exit_code": 2,
        "interrupted": False,
        "missing": 1,
        "trouble": "no model",
    }
    assert replays_summary(answer).count("### ") == 2

"""When two arms agree, and where they part."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from specdebug.loops.compare import Comparison, compare, first_difference
from specdebug.report.terminal import render_comparison
from specdebug.verdict.outcome import Outcome, RequestResult
from tests.run.fakes import text_of


def outcome(*requests: RequestResult, verdict: Any = "pass", trace: str = "t") -> Outcome:
    return Outcome(verdict, None, None, "", None, requests=requests, trace_hash=trace)


def request(rid: str, *ids: int) -> RequestResult:
    return RequestResult(rid, "g", 4, 0, ids, accept_lengths=(2, 3))


def compared(left: Outcome, right: Outcome) -> Comparison:
    return compare(("one", "two"), (left, right), lambda ids: "/".join(map(str, ids)))


@pytest.mark.parametrize(
    ("left", "right", "position"),
    [((1, 2), (1, 2), None), ((), (), None), ((1, 2), (1, 3), 1), ((1,), (1, 3), 1), ((), (1,), 0)],
)
def test_first_difference(left: tuple[int, ...], right: tuple[int, ...], position: int | None) -> None:
    assert first_difference(left, right) == position
    assert first_difference(right, left) == position


def test_equal_outputs_and_verdicts_agree_whatever_the_speed() -> None:
    comparison = compared(outcome(request("a", 1, 2)), outcome(request("a", 1, 2), trace="u"))
    assert (comparison.agree, comparison.exit_code, comparison.same_trace) == (True, 0, False)


def test_other_outputs_differ_and_both_texts_are_shown_from_there_on() -> None:
    comparison = compared(outcome(request("a", 1, 2, 3)), outcome(request("a", 1, 9)))
    assert comparison.exit_code == 1
    (difference,) = comparison.requests
    assert (difference.position, difference.left_text, difference.right_text) == (1, "2/3", "9")


def test_other_verdicts_differ_even_with_equal_outputs() -> None:
    comparison = compared(outcome(request("a", 1)), outcome(request("a", 1), verdict="fail"))
    assert comparison.exit_code == 1


def test_a_request_that_only_one_side_served_is_a_difference() -> None:
    comparison = compared(outcome(request("a", 1)), outcome(request("a", 1), request("b", 1)))
    assert not comparison.agree
    assert [(r.rid, r.same_output) for r in comparison.requests] == [("a", True), ("b", False)]


def test_it_can_be_written_as_json() -> None:
    comparison = compared(outcome(request("a", 1, 2)), outcome(request("b", 1)))
    data = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert data["requests"][0]["right"] is None
    assert data["requests"][0]["left"]["accept_mean"] == 2.5


def test_an_arm_that_cannot_be_run_here_leaves_nothing_to_compare() -> None:
    lacking = dataclasses.replace(outcome(verdict="unknown"), detail="FlashInfer is missing", unavailable=True)
    for left, right in ((lacking, outcome(request("a", 1))), (lacking, lacking)):
        comparison = compared(left, right)
        assert (comparison.agree, comparison.exit_code) == (False, 125)
        assert "one cannot be run here: FlashInfer is missing" in text_of(render_comparison("s", comparison))

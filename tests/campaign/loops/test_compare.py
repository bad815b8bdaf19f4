"""When two arms agree, and where they part."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from specdebug.campaign.loops.compare import Against, Comparison, compare, first_difference
from specdebug.report.compare import comparison_line
from specdebug.verdict.outcome import Outcome, RequestResult


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


def drafted(*lengths: int) -> Outcome:
    return outcome(RequestResult("a", "g", 4, 0, (1, 2), accept_lengths=lengths * 10))


def test_a_group_that_drafts_worse_is_named_and_its_outputs_agree_still() -> None:
    comparison = compared(drafted(3, 4, 2, 4), drafted(1))
    assert (comparison.agree, comparison.exit_code) == (True, 0)
    line = comparison_line(comparison)
    assert line.startswith("outputs and verdicts agree; accept lengths differ: g 3.25 (one) and 1.00 (two)")
    (told,) = comparison.to_dict()["accept_lengths"]
    assert (told["group"], told["left"], told["right"], told["differ"]) == ("g", 3.25, 1.0, True)


def test_accept_lengths_that_chance_can_explain_are_not_named() -> None:
    comparison = compared(drafted(3, 4, 2, 4), drafted(3, 4, 2, 4))
    assert "accept" not in comparison_line(comparison)
    assert comparison.to_dict()["accept_lengths"][0]["differ"] is False
    few = compared(outcome(request("a", 1)), outcome(request("a", 1)))
    assert few.drafting_apart == ()


def test_a_loss_against_a_baseline_is_a_failure_even_where_both_arms_have_it() -> None:
    both = (drafted(1), drafted(1))
    against = (Against("b.json", "lost"), Against("b.json", "no baseline", "told"))
    comparison = compare(("one", "two"), both, str, against)
    assert (comparison.agree, comparison.losing, comparison.exit_code) == (True, ("one",), 1)
    assert "; one lost accept length against the baseline" in comparison_line(comparison)
    assert comparison.to_dict()["baseline"][1]["status"] == "no baseline"


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
        assert "one cannot be run here: FlashInfer is missing" in comparison_line(comparison)

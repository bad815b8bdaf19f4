"""Where two servings part, and what a reference's word makes of it."""

import json
import math
from typing import Any

import pytest

from specdebug.verdict.outcome import RequestResult
from specdebug.verdict.twins import Compared, Rules, TokenWord, TwinBreak, beside_reference, compare

EVERYTHING = ("tokens", "stop reasons", "log probabilities", "accept lengths")


def served(rid: str = "a", output: tuple[int, ...] = (1, 2, 3, 4), **more: Any) -> RequestResult:
    facts: dict[str, Any] = {"finish_reason": "length", "accept_lengths": (2, 1), "logprobs": (-1.0,) * len(output)}
    return RequestResult(rid, "g", 4, 0, output, **{**facts, **more})


def parted(one: RequestResult, other: RequestResult, **rules: Any) -> Compared:
    asked = Rules(**{"keeps": EVERYTHING, "allowed": 1e-3, **rules})
    return compare({one.rid: one}, {other.rid: other}, asked)


def test_equal_servings_hold() -> None:
    found = parted(served(), served(logprobs=(-1.0005,) * 4))
    assert (found.breaks, found.requests, found.tokens, found.logprobs) == ([], 1, 4, 4)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"output": (1, 2, 9, 4)}, [("tokens", 2, 3, 9)]),
        ({"output": (1, 2, 3)}, [("tokens", 3, 4, None)]),  # an end that comes early is no near-tie
        ({"finish_reason": "stop"}, [("stop reasons", 4, "length", "stop")]),
        ({"logprobs": (-1.0, -1.1, -1.0, -1.0)}, [("log probabilities", 1, -1.0, -1.1)]),
        ({"logprobs": (-1.0, -math.inf, -1.0, -1.0)}, [("log probabilities", 1, -1.0, -math.inf)]),
        ({"accept_lengths": (2, 2)}, [("accept lengths", 1, 1, 2)]),
        ({"accept_lengths": (2,)}, [("accept lengths", 1, 1, None)]),
        # what was set back is verified otherwise, and what was aborted only began the same
        ({"accept_lengths": (2, 2), "retractions": 1}, []),
        ({"output": (1, 2), "finish_reason": "abort", "accept_lengths": ()}, []),
        ({"output": (1, 7), "finish_reason": "abort"}, [("tokens", 1, 2, 7)]),
        ({"logprobs": (-1.0, -1.0)}, [("log probabilities", 2, -1.0, None)]),  # one was never told
        ({"output": (1, 2), "finish_reason": "abort", "logprobs": ()}, []),
        # log probabilities count up to the first other token
        ({"output": (1, 2, 9, 4), "logprobs": (-1.0, -1.0, -5.0, -5.0)}, [("tokens", 2, 3, 9)]),
    ],
)
def test_each_thing_that_must_stay_is_named_where_it_does_not(other: dict[str, Any], told: list[Any]) -> None:
    found = parted(served(), served(**other))
    assert [(each.what, each.position, each.left, each.right) for each in found.breaks] == told


TOPS = (((1, -0.5), (2, -1.0)), ((3, -0.7), (4, -0.9)))


@pytest.mark.parametrize(
    ("tops", "told"),
    [
        ((((1, -0.5), (9, -1.0)), TOPS[1]), None),  # two as likely, of which one is last
        ((TOPS[0], ((3, -0.9), (4, -0.9))), (1, -0.7, -0.9)),
        ((TOPS[0], ((4, -0.7), (3, -0.9))), (1, -0.7, -0.9)),  # the same numbers of other tokens
        ((TOPS[0], TOPS[1][:1]), (1, 2.0, 1.0)),
    ],
)
def test_the_likeliest_tokens_are_held_by_rank_and_by_token(tops: Any, told: Any) -> None:
    found = parted(served(top_logprobs=TOPS), served(top_logprobs=tops)).breaks
    assert [(each.position, each.left, each.right) for each in found] == ([] if told is None else [told])
    assert all(each.what == "log probabilities" for each in found)


def test_no_reference_is_asked_about_tokens_that_the_model_s_own_logits_do_not_choose() -> None:
    found = parted(served(), served(output=(1, 2, 9, 4)), steered=("a",))
    assert [each.weighs for each in found.breaks] == [False]
    told = beside_reference({"a": served()}, {"a": []}, Rules(EVERYTHING, steered=("a",)))
    assert told.left_out == {"a": "its tokens are not chosen by the model's own logits"}


def test_no_number_is_as_near_as_nan() -> None:
    (found,) = parted(served(), served(logprobs=(-1.0, math.nan, -1.0, -1.0))).breaks
    assert (found.what, found.position) == ("log probabilities", 1)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["right"] == "nan"


def test_what_a_relation_does_not_keep_is_not_held() -> None:
    other = served(finish_reason="stop", accept_lengths=(1,), logprobs=(-9.0,) * 4)
    assert parted(served(), other, keeps=("tokens",)).breaks == []


def test_requests_that_cannot_be_compared_say_why() -> None:
    one = {"a": served("a"), "b": served("b", (1, 9)), "c": served("c"), "d": served("d"), "e": served("e")}
    other = {**one, "b": served("b", (1, 8)), "c": served("c", (5, 5)), "e": served("e", finish_reason=None)}
    goes_on = {"d": "c", "c": "b"}
    found = compare(one, other, Rules(EVERYTHING, goes_on, drawn=("a",)))
    assert [each.rid for each in found.breaks] == ["b"]
    assert found.left_out == {
        "a": "it is sampled, with other coins in the two",
        "c": "the request that it goes on from parted before",
        "d": "the request that it goes on from parted before",
        "e": "it did not come to its end in both",
    }


def test_a_sampled_request_is_held_to_its_coins_unless_it_was_set_back() -> None:
    one, other = served(output=(1, 2)), served(output=(1, 3))
    (found,) = parted(one, other, drawn=("a",), coins=True).breaks
    assert (found.what, found.drawn, found.weighs) == ("tokens", True, False)
    assert parted(one, served(output=(1, 3), retractions=1), drawn=("a",), coins=True).breaks == []


@pytest.mark.parametrize(
    ("left", "right", "wrong", "excused"),
    [(0.0, 5.0, "second", False), (5.0, 0.0, "first", False), (5.0, 6.0, "both", False), (0.0, 0.009, "", True)],
)
def test_a_reference_says_which_side_is_wrong_and_excuses_near_ties_alone(
    left: float, right: float, wrong: str, excused: bool
) -> None:
    broken = TwinBreak("a", "tokens", 3, 7, 8)
    judged = broken.judged(TokenWord(7, left, 0.01, -1.0), TokenWord(7, right, 0.01, -2.0), 1e-3)
    assert (judged.wrong, judged.excused) == (wrong, excused)
    assert json.loads(json.dumps(judged.to_dict()))["weighed"][1]["gap"] == right


def test_a_log_probability_is_never_excused() -> None:
    word = TokenWord(7, 0.0, 0.01, -1.0)
    judged = TwinBreak("a", "log probabilities", 3, -1.0, -1.5).judged(word, word, 1e-3)
    assert (judged.wrong, judged.excused) == ("second", False)
    never_told = TwinBreak("a", "log probabilities", 3, None, -1.0).judged(word, word, 1e-3)
    assert (never_told.wrong, never_told.excused) == ("first", False)


def test_what_was_served_beside_a_reference() -> None:
    right, near, off = TokenWord(2, 0.0, 0.01, -1.0), TokenWord(9, 0.005, 0.01, -1.0), TokenWord(9, 3.0, 0.01, -1.0)
    told = {"a": [right, near, off, off], "b": [right] * 4}
    one = {
        "a": served("a", (2, 3, 4, 5)),
        "b": served("b", (2,) * 4, logprobs=(-1.0, -1.0, -3.0, -1.0)),
        "c": served("c"),
    }
    found = beside_reference(one, told, Rules(("tokens", "log probabilities"), drawn=("c",), allowed=1e-3))
    assert [(each.rid, each.what, each.position, each.excused) for each in found.breaks] == [
        ("a", "tokens", 1, True), ("a", "tokens", 2, False), ("b", "log probabilities", 2, False),
    ]  # fmt: skip
    assert (found.requests, found.left_out) == (2, {"c": "it is sampled"})

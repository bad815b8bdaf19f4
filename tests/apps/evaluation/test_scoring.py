"""Which choice an answer takes, by its text and by the odds of its first token."""

from __future__ import annotations

import math

import pytest

from specdebug.apps.evaluation.questions import ChoiceQuestion
from specdebug.apps.evaluation.scoring import choice_odds, taken_by_odds, taken_by_text

LETTERED = ChoiceQuestion("?", ("one", "two", "three", "four"), 0)
CODE = ChoiceQuestion("x", (" in", " import", ")", " is not"), 0)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (" B", 1),
        ("(C) because", 2),
        ("**D**", 3),
        ("A.", 0),
        ("The answer is C.", 2),
        ("I think so. Answer: (B)", 1),
        ("Clearly, one of them", None),
        ("Because A is wrong", None),
        ("A's claim", None),
        ("E", None),
        ("B2", None),
        ("", None),
    ],
)
def test_a_letter_stands_alone_at_the_beginning_or_after_the_word_answer(text: str, taken: int | None) -> None:
    assert taken_by_text(LETTERED, "letter", text) == taken


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (" in items:", 0),
        (" import os", 1),
        (" is", 3),
        (") + 1", 2),
        (" it", None),  # " in", " import" and " is not" begin so, too
        (" x", None),
        ("", None),
    ],
)
def test_a_continuation_takes_the_choice_with_which_it_shares_most(text: str, taken: int | None) -> None:
    assert taken_by_text(CODE, "continuation", text) == taken


def test_white_space_alone_is_nothing_shared() -> None:
    question = ChoiceQuestion("x", (" a", "b", "c"), 0)
    assert taken_by_text(question, "continuation", " x") is None


def test_every_token_that_begins_a_choice_counts_for_it() -> None:
    top = [(math.log(0.5), " im"), (math.log(0.25), " i"), (math.log(0.125), ")"), (math.log(0.01), "")]
    odds = [math.exp(each) for each in choice_odds(CODE, "continuation", top)]
    assert odds == pytest.approx([0.25, 0.75, 0.125, 0.25])
    assert taken_by_odds(CODE, "continuation", top) == 1


def test_letters_are_told_with_and_without_a_space() -> None:
    top = [(math.log(0.4), " B"), (math.log(0.3), "C"), (math.log(0.2), " C"), (math.log(0.1), "Cat")]
    assert taken_by_odds(LETTERED, "letter", top) == 2


def test_no_choice_is_taken_where_none_is_likely_or_two_are_alike() -> None:
    assert taken_by_odds(LETTERED, "letter", [(-0.1, "x")]) is None
    assert taken_by_odds(CODE, "continuation", [(-0.1, " i")]) is None

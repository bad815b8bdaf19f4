"""The words of a question, in MMLU's form and as a text to continue."""

from __future__ import annotations

import pytest

from specdebug.apps.evaluation.prompts import prompts_of
from specdebug.apps.evaluation.questions import ChoiceQuestion, QuestionSet
from specdebug.base.errors import SpecDebugError

WHY = ChoiceQuestion("Why?", ("a", "b"), 1, "high_school_physics", "x.csv:1")
HOW = ChoiceQuestion("How?", ("c", "d"), 0, "high_school_physics", "dev.csv:1")
SET = QuestionSet("x.csv", (WHY,), {"high_school_physics": (HOW, HOW)})


def test_a_question_follows_its_subject_s_worked_examples() -> None:
    assert prompts_of(SET, "letter", 1) == [
        "The following are multiple choice questions (with answers) about high school physics.\n\n"
        "How?\nA. c\nB. d\nAnswer: A\n\n"
        "Why?\nA. a\nB. b\nAnswer:"
    ]


def test_all_examples_are_taken_unless_their_number_is_said() -> None:
    assert prompts_of(SET, "letter", None)[0].count("Answer: A") == 2
    assert prompts_of(SET, "letter", 0)[0].count("Answer") == 1


def test_more_examples_than_there_are_is_an_error_at_the_question() -> None:
    with pytest.raises(SpecDebugError) as caught:
        prompts_of(SET, "letter", 3)
    assert str(caught.value).startswith("x.csv:1: 3 worked examples are asked for, and there are 2 of high_school_phys")


def test_a_continuation_is_the_text_alone() -> None:
    assert prompts_of(QuestionSet("x", (ChoiceQuestion(" a b", (" c", " d"), 0),)), "continuation", None) == [" a b"]
    with pytest.raises(SpecDebugError, match="go with letters"):
        prompts_of(SET, "continuation", 1)

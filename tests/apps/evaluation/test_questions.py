"""Questions from disk: MMLU's CSV with and without a head, its folder, JSON lines; and what is wrong with them."""

import json
import math
from pathlib import Path

import pytest

from specdebug.apps.evaluation.questions import (
    ChoiceQuestion,
    QuestionSet,
    choice_odds,
    prompts_of,
    read_questions,
    taken_by_odds,
    taken_by_text,
)
from specdebug.base.errors import ContentError, SpecDebugError

RIGHT = {"question": "1 + 1 =", "choices": ["1", "2", "3"], "answer": 1}


def jsonl(folder: Path, *records: object) -> Path:
    path = folder / "q.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records), encoding="utf-8")
    return path


def test_mmlu_s_folder_has_questions_by_subject_and_examples(tmp_path: Path) -> None:
    for name in ("test", "dev"):
        (tmp_path / name).mkdir()
    (tmp_path / "test" / "world_history_test.csv").write_text('"When,\nand where?",a,b,c,d,B\nWho?,e,f,g,h,D\n')
    (tmp_path / "dev" / "world_history_dev.csv").write_text("Why?,i,j,k,l,A\n")
    (tmp_path / "test" / "algebra_test.csv").write_text("x?,1,2,3,4,C\n")
    found = read_questions(tmp_path)
    assert [each.subject for each in found.questions] == ["algebra", "world_history", "world_history"]
    assert found.questions[1] == ChoiceQuestion(
        "When,\nand where?", ("a", "b", "c", "d"), 1, "world_history", f"{tmp_path}/test/world_history_test.csv:1"
    )
    assert found.questions[2].place.endswith("_test.csv:3"), "the first question has two lines"
    assert [each.text for each in found.examples["world_history"]] == ["Why?"]
    assert "algebra" not in found.examples


def test_a_head_names_the_columns_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "mmlu.csv"
    path.write_text(",Question,A,B,C,D,Answer,Subject\n0,What?,a,b,c,d,D,law\n")
    (question,) = read_questions(path).questions
    assert (question.text, question.answer, question.subject) == ("What?", 3, "law")
    assert question.place == f"{path}:2"


def test_a_line_of_json_has_its_answer_as_letter_index_or_text(tmp_path: Path) -> None:
    path = jsonl(tmp_path, RIGHT, RIGHT | {"answer": "B"}, RIGHT | {"answer": "2", "subject": "sums"})
    found = read_questions(path)
    assert [each.answer for each in found.questions] == [1, 1, 1]
    assert found.questions[2].subject == "sums"


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([1], "must be an object with question, choices and answer"),
        ({"question": "x"}, "lacks choices, answer"),
        (RIGHT | {"question": " "}, "the question must be text, and not empty"),
        (RIGHT | {"choices": ["1"]}, "there must be 2 to 26 choices, in a list"),
        (RIGHT | {"choices": ["1", 2, "3"]}, "every choice must be text, and not empty"),
        (RIGHT | {"choices": ["1", "1"]}, "two choices are the same"),
        (RIGHT | {"question": "\ud800"}, "holds half of a surrogate pair, which is no text"),
        (RIGHT | {"answer": "D"}, "answer 'D' is neither of ABC nor one of the choices"),
        (RIGHT | {"answer": 3}, "answer must be a letter, a choice's text or its index below 3"),
        (RIGHT | {"answer": True}, "answer must be a letter, a choice's text or its index below 3"),
        (RIGHT | {"subject": 1}, "subject must be text"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_with_its_place(tmp_path: Path, record: object, said: str) -> None:
    path = jsonl(tmp_path, RIGHT, record)
    with pytest.raises(ContentError) as caught:
        read_questions(path)
    assert str(caught.value) == f"{path}:2: {said}"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("q.jsonl", b"{\n", ":1: is no JSON: Expecting property name"),
        ("q.jsonl", b"\n\n", ": holds no question"),
        ("q.jsonl", b'{"question"}\xff', ":1: is not UTF-8 text"),
        ("q.csv", b"What?,a,b,c,d,A\nWho?,a,b,c,A\n", ":2: has 5 columns in place of 6"),
        ("q.csv", b"What?,a,b,c,d,E\n", ":1: answer 'E' is neither of ABCD"),
        ("q.csv", b'"What?,a,b,c,d,E\n', ":1: is no CSV: unexpected end of data"),
        ("q.csv", b"question,answer,a,b,c\n", ":1: its head lacks d"),
        ("q.txt", b"", ": is no set of questions: name a .jsonl or .csv file, or MMLU's folder"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ContentError) as caught:
        read_questions(path)
    assert str(caught.value).startswith(f"{path}{said}")


def test_a_path_that_leads_nowhere_and_a_folder_without_questions(tmp_path: Path) -> None:
    with pytest.raises(ContentError, match="cannot be read: No such file"):
        read_questions(tmp_path / "none.jsonl")
    with pytest.raises(ContentError, match=r"holds no \*_test\.csv"):
        read_questions(tmp_path)


def test_some_are_drawn_by_a_seed_each_once_and_in_order(tmp_path: Path) -> None:
    found = read_questions(jsonl(tmp_path, *[RIGHT | {"question": f"{n}?"} for n in range(30)]))
    drawn = found.drawn(10, 3)
    texts = [each.text for each in drawn.questions]
    assert texts == [each.text for each in found.drawn(10, 3).questions]
    assert texts != [each.text for each in found.drawn(10, 4).questions]
    assert texts == sorted(set(texts), key=lambda text: int(text[:-1]))
    assert found.drawn(None, 3) is found
    with pytest.raises(SpecDebugError, match="has 30 questions, fewer than the 31 that are to be asked"):
        found.drawn(31, 0)


WHY = ChoiceQuestion("Why?", ("a", "b"), 1, "high_school_physics", "x.csv:1")
HOW = ChoiceQuestion("How?", ("c", "d"), 0, "high_school_physics", "dev.csv:1")
SET = QuestionSet("x.csv", (WHY,), {"high_school_physics": (HOW, HOW)})


def test_a_question_follows_its_subject_s_worked_examples() -> None:
    assert prompts_of(SET, "letter", 1) == [
        "The following are multiple choice questions (with answers) about high school physics.\n\n"
        "How?\nA. c\nB. d\nAnswer: A\n\n"
        "Why?\nA. a\nB. b\nAnswer:"
    ]


def test_more_examples_than_there_are_is_an_error_at_the_question() -> None:
    with pytest.raises(SpecDebugError) as caught:
        prompts_of(SET, "letter", 3)
    assert str(caught.value).startswith("x.csv:1: 3 worked examples are asked for, and there are 2 of high_school_phys")


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


def test_every_token_that_begins_a_choice_counts_for_it() -> None:
    top = [(math.log(0.5), " im"), (math.log(0.25), " i"), (math.log(0.125), ")"), (math.log(0.01), "")]
    odds = [math.exp(each) for each in choice_odds(CODE, "continuation", top)]
    assert odds == pytest.approx([0.25, 0.75, 0.125, 0.25])
    assert taken_by_odds(CODE, "continuation", top) == 1


def test_no_choice_is_taken_where_none_is_likely_or_two_are_alike() -> None:
    assert taken_by_odds(LETTERED, "letter", [(-0.1, "x")]) is None
    assert taken_by_odds(CODE, "continuation", [(-0.1, " i")]) is None

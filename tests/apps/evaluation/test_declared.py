"""Evaluations' files: the shipped one, what they may hold, and what is wrong with one."""

from pathlib import Path

import pytest

from specdebug.apps.evaluation.declared import (
    ACCEPT_LENGTH,
    SCORE,
    SHIPPED,
    Threshold,
    ThresholdError,
    accept_length_of,
    check,
    parse_threshold,
    read_evaluation,
    score_of,
)
from specdebug.apps.evaluation.questions import read_questions
from specdebug.base.errors import ContentError
from specdebug.scenario.checks import asked_of

LEAST = "name: own\nquestions: {file: q.jsonl}\n"


def read(tmp_path: Path, text: str) -> object:
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    return read_evaluation(str(tmp_path / "own.yaml"))


def wrong(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ContentError) as caught:
        read(tmp_path, text)
    return [str(each).removeprefix(f"{tmp_path}/") for each in caught.value.problems]


def test_the_shipped_evaluation_is_of_its_questions_and_drafts() -> None:
    shipped = read_evaluation("code")
    assert len(read_questions(shipped.question_path).questions) > 150
    assert shipped.expect.score == Threshold(0.72)
    assert shipped.expect.accept_length == Threshold(2.26, strict=True)
    assert asked_of(shipped.scenario(), "eval").drafts
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 200_000


def test_what_is_wrong_is_told_with_its_place(tmp_path: Path) -> None:
    assert wrong(tmp_path, LEAST + "expect: {score: 72, speed: 1}\n") == [
        "own.yaml:3:17: expect.score must be from 0 to 1, got 72",
        "own.yaml:3:21: unknown key 'speed' in expect; known: accept_length, score",
    ]
    assert wrong(tmp_path, "name: own\nquestions: {file: q.jsonl, ask: number}\n") == [
        "own.yaml:2:33: questions.ask cannot be 'number'; known: continuation, letter"
    ]
    assert wrong(tmp_path, "name: own\n") == ["own.yaml:1:1: the file lacks the key 'questions'"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cod", "cod: no evaluation of this name; did you mean 'code'?"),
        ("none.yaml", "none.yaml: no such file"),
        ("", "'': no evaluation of this name; known: code"),
    ],
)
def test_a_name_that_there_is_not(name: str, said: str) -> None:
    with pytest.raises(ContentError) as caught:
        read_evaluation(name)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("text", "threshold", "said"),
    [
        (">=0.72", Threshold(0.72), ">=0.72"),
        ("> 0.72", Threshold(0.72, strict=True), ">0.72"),
        ("72%", Threshold(0.72), ">=0.72"),
        (".5", Threshold(0.5), ">=0.5"),
    ],
)
def test_a_threshold_is_at_least_unless_it_says_more_than(text: str, threshold: Threshold, said: str) -> None:
    assert parse_threshold(text, *SCORE) == threshold
    assert str(threshold) == said


@pytest.mark.parametrize(
    ("text", "bounds", "said"),
    [
        ("<0.5", SCORE, "must be such as '>=0.72' or '>2.26', got '<0.5'"),
        ("72", SCORE, "must be from 0 to 1, got 72"),
        ("0.5", ACCEPT_LENGTH, "must be from 1 to 1024, got 0.5"),
        ("nan", SCORE, "must be such as"),
    ],
)
def test_what_is_no_threshold_is_refused(text: str, bounds: tuple[float, float], said: str) -> None:
    with pytest.raises(ThresholdError) as caught:
        parse_threshold(text, *bounds)
    assert str(caught.value).startswith(said)


def test_nothing_is_decided_of_what_was_not_measured_or_not_measured_to_the_end() -> None:
    (blind,) = check(accept_length_of([], 0.95, "this target tells none"), Threshold(2.0), "")
    assert (blind.held, blind.why) == (None, "this target tells none")
    (cut,) = check(score_of(10, 10, 0.95), Threshold(0.5), "3 of 13 questions have no answer")
    assert (cut.held, cut.why) == (None, "3 of 13 questions have no answer")
    assert score_of(0, 0, 0.95).value is None

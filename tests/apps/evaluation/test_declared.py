"""Evaluations' files: the shipped one, what they may hold, and what is wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdebug.apps.evaluation.declared import SHIPPED, Asking, Evaluation, Expected, read_evaluation
from specdebug.apps.evaluation.gate import Threshold
from specdebug.apps.evaluation.questions import read_questions
from specdebug.base.errors import ContentError
from specdebug.base.schema import keys_of
from specdebug.scenario.checks import asked_of
from specdebug.targets.settings import HttpServer, LaunchedServer

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


def test_questions_lie_beside_the_file_and_thresholds_may_be_numbers(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "?", "choices": ["a", "b"], "answer": 0}))
    (tmp_path / "own.yaml").write_text(
        LEAST + "target: http://host:1\nexpect: {score: 0.5, accept_length: '>2'}\n", encoding="utf-8"
    )
    evaluation = read_evaluation(str(tmp_path / "own.yaml"))
    assert evaluation.question_path == str(tmp_path / "q.jsonl")
    assert evaluation.target == HttpServer(url="http://host:1")
    assert (evaluation.expect.score, evaluation.expect.accept_length) == (Threshold(0.5), Threshold(2.0, strict=True))


def test_a_server_gets_a_connection_for_every_question_under_way(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("name: own\nquestions: {file: q.jsonl, concurrency: 200}\ntarget: serve\n")
    evaluation = read_evaluation(str(tmp_path / "own.yaml"))
    served = evaluation.scenario().target
    assert isinstance(served, LaunchedServer)
    assert served.connections == 200


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


def test_the_page_has_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "eval.md").read_text(encoding="utf-8")
    named = [key.name for key in keys_of(Evaluation) if key.name not in ("questions", "expect")]
    named += [f"questions.{key.name}" for key in keys_of(Asking)] + [f"expect.{key.name}" for key in keys_of(Expected)]
    assert [name for name in named if f"`{name}`" not in page] == []

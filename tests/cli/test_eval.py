"""``specdebug eval``: options over the file, exit codes, the report, the document and the file of answers."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run
from tests.apps.evaluation.asking import WorkHere, written

PUT = ("--ask", "continuation", "--max-new-tokens", "8", "--concurrency", "2")


@pytest.fixture
def pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[WorkHere]:
    """The pool that the command is given; put another in its place."""
    given = [WorkHere()]

    @contextmanager
    def workers(jobs: int) -> Iterator[WorkHere]:
        yield given[0]

    monkeypatch.setattr("specdebug.cli.evaluate.workers", workers)
    return given


def test_a_gate_that_holds_and_one_that_does_not(
    tmp_path: Path, pools: list[WorkHere], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path)
    held = ("--min-score", "0.6", "--min-accept-length", ">2.26")
    assert run(["eval", "--questions", path, *PUT, *held]) == 0
    said = capsys.readouterr().out
    assert "questions: 3 questions of " in said
    assert "100.0%" in said
    assert "score >=0.6 lies inside the 95% interval" in said
    assert said.splitlines()[-1] == "pass"

    assert run(["eval", "--questions", path, *PUT, "--min-accept-length", "5.9"]) == 1
    said = capsys.readouterr().out
    assert ">=5.9" in said
    assert said.splitlines()[-1] == "fail"


def test_the_document_has_means_intervals_checks_and_what_was_asked(
    tmp_path: Path, pools: list[WorkHere], told: Callable[..., Any]
) -> None:
    path = written(tmp_path)
    found = told("eval", "--questions", path, *PUT, "--num-questions", "2", "--min-score", "0.5")
    assert found["exit_code"] == 0
    assert found["verdict"] == "pass"
    assert found["questions"]["asked"] == found["answers"] == found["right"] == 2
    assert found["score"]["mean"] == 1.0
    assert found["score"]["interval"][0] == pytest.approx(0.158, abs=1e-3)
    assert found["accept_length"]["of"] > 1
    assert found["checks"] == [{"of": "score", "expected": ">=0.5", "held": True, "why": "", "near": True}]


def test_every_answer_is_a_line_of_the_file_that_is_asked_for(tmp_path: Path, pools: list[WorkHere]) -> None:
    argv = ["eval", "--questions", written(tmp_path), *PUT, "--by", "logprob", "--answers", "a.jsonl"]
    assert run([*argv, "--json-file", "r.json"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [each["place"] for each in lines] == [f"{tmp_path}/q.jsonl:{number}" for number in (1, 2, 3)]
    assert lines[0]["taken"] == lines[0]["answer"] == " ImportError"
    assert lines[0]["right"] is True
    assert len(lines[0]["log_probabilities"]) == 4
    assert max(lines[0]["log_probabilities"], key=lambda value: value or -99) == lines[0]["log_probabilities"][1]
    assert json.loads((tmp_path / "r.json").read_text())["questions"]["by"] == "logprob"


def test_options_go_over_a_file_and_its_questions_lie_beside_it(
    tmp_path: Path, pools: list[WorkHere], told: Callable[..., Any]
) -> None:
    written(tmp_path)
    (tmp_path / "own.yaml").write_text(
        "name: own\n"
        "questions: {file: q.jsonl, ask: continuation, max_new_tokens: 8}\n"
        "expect: {score: 1, accept_length: 2}\n"
    )
    # The engine of the file has no drafts.
    found = told("eval", "own.yaml", "--min-accept-length", "1.5", "--page-size", "4", code=125)
    assert [(each["of"], each["expected"], each["held"]) for each in found["checks"]] == [
        ("score", ">=1", True),
        ("accept length", ">=1.5", None),
    ]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--min-score", "72"), "--min-score must be from 0 to 1, got 72"),
        (("--min-accept-length", "<2"), "--min-accept-length must be such as '>=0.72' or '>2.26', got '<2'"),
        (("--confidence", "2"), "--confidence must be above 50% and below 100%"),
        (("--questions", "none.jsonl"), "none.jsonl: cannot be read: No such file or directory"),
        (("--num-questions", "1000"), "questions, fewer than the 1000 that are to be asked"),
        (("--timeout", "0"), "--timeout must be above 0 seconds, got 0"),
        (("cod",), "cod: no evaluation of this name; did you mean 'code'?"),
        (("--target", "nothing"), "no target 'nothing'"),
        (("--shots", "2"), "worked examples (shots) go with letters"),
        (("--answers", "no/such/a.jsonl"), "cannot write no/such/a.jsonl: no folder no/such"),
    ],
)
def test_a_user_s_mistake_is_one_line(
    pools: list[WorkHere], refused: Callable[..., str], argv: tuple[str, ...], said: str
) -> None:
    assert said in refused("eval", *argv)


@pytest.mark.slow
def test_a_fix_is_reverted_where_the_engine_runs(told: Callable[..., Any]) -> None:
    for target in ("embedded", "serve"):
        found = told("eval", "--num-questions", "4", "--revert", "25015", "--target", target)
        assert found["reverted"] == [25015]
        assert all(found["reverted_hits"]["25015"].values()), target


@pytest.mark.slow
def test_the_shipped_target_answers_the_shipped_questions_far_above_chance(
    told: Callable[..., Any],
) -> None:
    for by, least in (("generation", 0.72), ("logprob", 0.9)):
        found = told("eval", "--by", by)
        assert found["answers"] > 150
        assert found["score"]["interval"][0] > least
        assert found["accept_length"]["interval"][0] > 2.26

"""An evaluation told to a person: what is remarked on, and text that somebody else wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from specdebug.apps.evaluation.declared import Asking, Evaluation, Expected
from specdebug.apps.evaluation.gate import Threshold
from specdebug.apps.evaluation.questions import ChoiceQuestion, QuestionSet
from specdebug.apps.evaluation.run import Evaluated, MarkedAnswer
from specdebug.report.evaluation import answers_jsonl, evaluation_document, render_evaluation
from specdebug.verdict.outcome import Outcome
from tests.run.fakes import text_of

QUESTION = ChoiceQuestion("Why?", ("a", "b"), 0, "sums", "q.csv:1")
PASSED = Outcome("pass", None, None, "", None)


def answer(number: int, taken: int | None, **more: Any) -> MarkedAnswer:
    return MarkedAnswer(number, QUESTION, "text", taken, (3, 1), 9, 4, 5, **more)


def result(*answers: MarkedAnswer, path: str = "q.csv", by: Any = "generation", **more: Any) -> Evaluated:
    evaluation = Evaluation("own", Asking(path, by=by), path=Path("own.yaml"))
    asked = QuestionSet(path, (QUESTION,) * len(answers))
    return Evaluated(evaluation, asked, answers, PASSED, (), 0.95, 1.5, **more)


def test_answers_without_a_choice_are_counted_as_wrong_and_named() -> None:
    told = result(answer(0, 0), answer(1, None))
    said = text_of(render_evaluation(told))
    assert "1 answer took no choice, and counted as wrong" in said
    assert "50.0%" in said
    assert evaluation_document(told)["subjects"] == {"sums": {"answers": 2, "right": 1}}


def test_what_was_measured_is_told_without_thresholds() -> None:
    said = text_of(render_evaluation(result(answer(0, 0), answer(1, 0), server_accept_length=2.1)))
    assert "accept length   2.000" in said
    assert "4 verifies" in said
    assert "the server's own avg_spec_accept_length is 2.100" in said
    assert said.rstrip().endswith("pass")


def test_what_is_undecided_says_why() -> None:
    told = replace(result(answer(0, 0), tells_accepts=False), answers=(replace(answer(0, 0), verifies=()),))
    told = replace(told, evaluation=replace(told.evaluation, expect=Expected(accept_length=Threshold(2.26, True))))
    said = text_of(render_evaluation(told))
    assert "accept length >2.26 is not decided: this target tells no accept lengths" in said
    assert said.rstrip().endswith("unknown")


def test_a_failure_ends_in_its_signature_and_its_words_are_escaped() -> None:
    told = result(answer(0, 0), path="\x1b[31mq.csv")
    told = replace(told, outcome=Outcome("fail", "nan@draft.logits", "draft.logits", "3 values\x1b[0m", 4))
    said = text_of(render_evaluation(told))
    assert "\x1b" not in said
    assert "3 values\\x1b[0m" in said
    assert said.rstrip().endswith("fail nan@draft.logits")
    assert evaluation_document(told)["exit_code"] == 1


def test_what_is_not_the_engine_s_own_code_is_told() -> None:
    told = replace(result(answer(0, 0)), outcome=replace(PASSED, not_engine_code=("graphs: none", "a.kernel")))
    assert "engine's own GPU code: graphs; 1 stand-in (see --json)" in " ".join(
        text_of(render_evaluation(told)).split()
    )
    assert evaluation_document(told)["not_engine_code"] == ["graphs: none", "a.kernel"]


def test_documents_are_strict_json() -> None:
    told = result(answer(0, 0, top=[(-0.5, " A")]), by="logprob")
    json.dumps(evaluation_document(told), allow_nan=False)
    (line,) = answers_jsonl(told).splitlines()
    assert json.loads(line)["log_probabilities"] == [-0.5, None]

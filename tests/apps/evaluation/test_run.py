"""An evaluation from the questions to the verdict, on the engine itself and on a server in front of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specdebug.apps.evaluation.declared import Expected, Threshold
from specdebug.base.errors import ContentError, SpecDebugError
from specdebug.patching.toggles import load_registry
from specdebug.report.evaluation import evaluation_report
from specdebug.targets.settings import HttpServer
from specdebug.workers.job import WorkerEnd
from tests.apps.evaluation.asking import CODE, ENGINE, WorkHere, evaluated, evaluation
from tests.apps.serve.serving import Serving
from tests.run.fakes import text_of

PLAIN = {"model": "tiny", "max_running_requests": 4}


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(ENGINE) as server:
        yield server


@pytest.mark.parametrize("by", ["generation", "logprob"])
def test_the_engine_s_answers_are_marked_and_its_verifies_counted(tmp_path: Path, by: str) -> None:
    result = evaluated(evaluation(tmp_path, by=by))
    assert [each.right for each in result.answers] == [True] * 3
    assert result.score.value == 1.0
    assert result.verdict == "pass"
    counts = [len(each.verifies) for each in result.answers]
    assert result.accept_length.number == sum(counts)
    assert all(sum(each.verifies) >= each.tokens - 1 for each in result.answers), "the first token is the prefill's"


@pytest.mark.parametrize("by", ["generation", "logprob"])
def test_a_server_answers_as_the_engine_does_and_counts_the_same(tmp_path: Path, serving: Serving, by: str) -> None:
    asked = evaluation(tmp_path, by=by)
    inside = evaluated(asked)
    over = evaluated(replace(asked, target=HttpServer(url=serving.url, model="not/here", dtype="float32")))
    assert [each.text for each in over.answers] == [each.text for each in inside.answers]
    assert [each.taken for each in over.answers] == [each.taken for each in inside.answers]
    assert [sorted(each.verifies) for each in over.answers] == [sorted(each.verifies) for each in inside.answers]
    assert over.server_accept_length == pytest.approx(over.accept_length.value)
    if by == "logprob":
        for one, other in zip(over.answers, inside.answers, strict=True):
            theirs, ours = ({text: value for value, text in each.top[:4]} for each in (one, other))
            assert theirs == pytest.approx(ours, abs=1e-3)


def test_no_accept_length_is_no_verdict_where_one_is_expected(tmp_path: Path) -> None:
    asked = evaluation(tmp_path, engine=PLAIN)
    assert evaluated(asked).verdict == "pass"
    result = evaluated(replace(asked, expect=Expected(accept_length=Threshold(2.0))))
    assert (result.verdict, result.exit_code) == ("unknown", 125)
    assert result.checks[0].why == "no draft was verified"
    with Serving(PLAIN) as server:
        over = evaluated(
            replace(asked, target=HttpServer(url=server.url), expect=Expected(accept_length=Threshold(2.0)))
        )
    assert over.exit_code == 125
    assert over.checks[0].why == "this target tells no accept lengths"


def test_a_server_s_own_count_stands_in_for_answers_that_tell_of_no_verify(tmp_path: Path) -> None:
    result = replace(evaluated(evaluation(tmp_path, engine=PLAIN)), server_accept_length=2.5)
    assert (result.accept_length.value, result.accept_length.interval) == (2.5, None)
    assert "the server's own count" in text_of(evaluation_report(result))


def test_a_worker_that_dies_fails_the_gate_by_its_death(tmp_path: Path) -> None:
    result = evaluated(evaluation(tmp_path, concurrency=1), WorkHere(1, WorkerEnd("signal", -11, 0.1, 1.0, "")))
    assert (result.verdict, result.outcome.signature) == ("fail", "crash:SIGSEGV")
    assert len(result.answers) == 1


@pytest.mark.parametrize("target", ["embedded", "http"])
def test_a_question_that_is_too_long_is_named_with_its_line(tmp_path: Path, serving: Serving, target: str) -> None:
    asked = evaluation(tmp_path, [CODE[0], ("x = 1\n" * 9000, ("a", "b"), 0)])
    if target == "http":
        asked = replace(asked, target=HttpServer(url=serving.url))
    with pytest.raises(SpecDebugError) as caught:
        evaluated(asked)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"{tmp_path}/q.jsonl:2: this question cannot be served: ")
    assert "fewer shots" in str(caught.value)


def test_a_target_that_cannot_have_fixes_reverted_or_tell_odds_is_refused(tmp_path: Path, serving: Serving) -> None:
    toggles = load_registry().select([25015])
    over = replace(evaluation(tmp_path), target=HttpServer(url=serving.url))
    with pytest.raises(SpecDebugError, match="target http cannot have fixes reverted"):
        evaluated(over, toggles=toggles)
    dense = replace(evaluation(tmp_path, by="logprob"), target="reference")
    with pytest.raises(SpecDebugError, match="tells no log probabilities; ask by generation"):
        evaluated(dense)


def test_a_server_that_is_not_there_and_an_option_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(SpecDebugError, match=r"no server answers at http://127\.0\.0\.1:9"):
        evaluated(replace(evaluation(tmp_path), target=HttpServer(url="http://127.0.0.1:9")))
    with pytest.raises(ContentError, match="page_size"):
        evaluated(evaluation(tmp_path, engine={**ENGINE, "page_size": 0}))

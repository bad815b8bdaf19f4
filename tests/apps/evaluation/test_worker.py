"""The worker's side: what goes wrong while it asks, as events that the parent understands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdebug import patching
from specdebug.apps.evaluation import askers
from specdebug.apps.evaluation.declared import Expected
from specdebug.apps.evaluation.gate import Threshold
from specdebug.base.errors import Where
from specdebug.patching.toggles import load_registry
from specdebug.targets.embedded import EmbeddedSession
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from tests.apps.evaluation.asking import CODE, evaluated, evaluation


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, after: int = 1) -> None:
    """Have the engine raise an error in place of a step, after so many."""
    advance, left = EmbeddedSession.advance, [after]

    def advanced(self: EmbeddedSession) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return advance(self)

    monkeypatch.setattr(EmbeddedSession, "advance", advanced)


def test_no_more_questions_are_under_way_than_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, wait = [], askers.SessionAsker.wait

    def waited(self: askers.SessionAsker) -> Any:
        under_way = [each for each in self._session.inside.requests.values() if each.finish_reason is None]
        most.append(len(under_way))
        return wait(self)

    monkeypatch.setattr(askers.SessionAsker, "wait", waited)
    questions = [(f"# {number}\n{CODE[0][0]}", *CODE[0][1:]) for number in range(5)]
    assert len(evaluated(evaluation(tmp_path, questions, concurrency=2)).answers) == 5
    assert max(most) == 2


def test_an_engine_that_fails_is_a_failure_with_its_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, AssertionError("slots do not add up"))
    result = evaluated(replace(evaluation(tmp_path), expect=Expected(Threshold(0.5))))
    assert (result.verdict, result.outcome.signature) == ("fail", "assert@engine")
    assert result.checks[0].why == "3 of 3 questions have no answer"


def test_a_machine_that_fails_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, MachineFailed(MachineFailure("disk", "No space left on device")))
    result = evaluated(evaluation(tmp_path))
    assert (result.verdict, result.exit_code) == ("unknown", 125)
    assert "there is no room to write" in result.outcome.detail


def test_a_fix_whose_revert_cannot_be_put_in_place_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise patching.PatchError("the text is not there", Where("toggles/25015.yaml", 9))

    monkeypatch.setattr(patching, "apply", refuse)
    result = evaluated(evaluation(tmp_path), toggles=load_registry().select([25015]))
    assert (result.verdict, result.exit_code) == ("unknown", 125)
    assert result.outcome.detail == "toggles/25015.yaml:9: the text is not there"
    assert result.answers == ()


@pytest.mark.parametrize(("own", "verdict"), [((), "pass"), ((("nan@draft.logits", "3 values"),), "fail")])
def test_what_a_server_says_of_failures_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: Any, verdict: str
) -> None:
    class Server:
        def totals(self) -> dict[str, Any]:
            return {"avg_spec_accept_length": 2.5}

        def findings(self) -> Any:
            return own

        def reached(self) -> dict[str, int]:
            return {}

        new_injections = lost = lambda self: ()

    monkeypatch.setattr(EmbeddedSession, "server", Server())
    result = evaluated(evaluation(tmp_path))
    assert (result.verdict, result.outcome.signature) == (verdict, own[0][0] if own else None)
    assert result.server_accept_length == 2.5

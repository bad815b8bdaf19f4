"""The worker's side: what goes wrong while it asks, as events that the parent understands."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from specdebug import patching
from specdebug.apps.evaluation.declared import Expected, Threshold
from specdebug.apps.evaluation.worker import Put, ServerAsker
from specdebug.base.errors import Where
from specdebug.patching.toggles import load_registry
from specdebug.targets.base import Asked
from specdebug.targets.embedded import EmbeddedSession
from specdebug.targets.http.client import ServerClient
from specdebug.targets.http.server import ServerInfo
from specdebug.targets.http.session import HttpSession
from specdebug.targets.requests import SessionFailed
from specdebug.targets.settings import HttpServer
from specdebug.workers.machine_failure import MachineFailed, MachineFailure
from tests.apps.evaluation.asking import evaluated, evaluation
from tests.targets.http.opened import opening


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, after: int = 1) -> None:
    """Have the engine raise an error in place of a step, after so many."""
    advance, left = EmbeddedSession.advance, [after]

    def advanced(self: EmbeddedSession) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return advance(self)

    monkeypatch.setattr(EmbeddedSession, "advance", advanced)


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

        def lost(self) -> tuple[()]:
            return ()

    monkeypatch.setattr(EmbeddedSession, "server", Server())
    result = evaluated(evaluation(tmp_path))
    assert (result.verdict, result.outcome.signature) == (verdict, own[0][0] if own else None)
    assert result.server_accept_length == 2.5


PUTS = [Put(number, f"question {number}", f"q.jsonl:{number + 1}") for number in range(3)]
META = {"finish_reason": {"type": "length", "length": 3}, "prompt_tokens": 5, "completion_tokens": 3}
Play = Callable[[dict[str, Any]], httpx.Response]


@contextmanager
def asking(play: Play, *, odds: bool = False) -> Iterator[ServerAsker]:
    """An asker at a server that answers a body so."""

    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/generate"
        return play(json.loads(request.content))

    server = HttpServer(url="http://played:1")
    client = ServerClient(server.url, transport=httpx.MockTransport(handle))
    loop = asyncio.new_event_loop()
    session = HttpSession(client, server, Asked("tiny", server=True), frozenset(), loop, ServerInfo(), opening())
    asker = ServerAsker(session, 3, odds=odds)
    try:
        yield asker
    finally:
        asker.close()
        session.close(True)


def answers(asker: ServerAsker, puts: list[Put]) -> dict[int, Any]:
    for put in puts:
        asker.ask(put)
    found: dict[int, Any] = {}
    while len(found) < len(puts):
        found |= {each.number: each for each in asker.wait()}
    return found


def told(text: Any = "so", **meta: Any) -> httpx.Response:
    return httpx.Response(200, json={"text": text, "meta_info": META | meta})


def test_a_question_goes_as_text_and_greedily_and_comes_back_with_its_verifies() -> None:
    bodies = []

    def play(body: dict[str, Any]) -> httpx.Response:
        bodies.append(body)
        return told(body["text"].upper(), spec_verify_ct=2, spec_accept_histogram=[1, 0, 1], cached_tokens=4)

    with asking(play) as asker:
        found = answers(asker, PUTS)
    assert [found[number].text for number in range(3)] == ["QUESTION 0", "QUESTION 1", "QUESTION 2"]
    assert found[0].verifies == (3, 1)
    assert (found[0].prompt_tokens, found[0].cached_tokens, len(found[0].ids)) == (5, 4, 3)
    assert bodies[0] == {"text": "question 0", "sampling_params": {"max_new_tokens": 3, "temperature": 0}}


def test_a_full_queue_is_asked_again() -> None:
    refusals = [httpx.Response(503, headers={"Retry-After": "0"}, json={"error": {"message": "full"}})] * 2
    with asking(lambda body: refusals.pop() if refusals else told()) as asker:
        assert answers(asker, PUTS[:1])[0].text == "so"
    assert not refusals


@pytest.mark.parametrize(
    ("response", "odds", "site", "said"),
    [
        (told(text=None), False, "http.answer", "text is null"),
        (told(finish_reason={"type": "abort"}), False, "http.answer", "/generate: ended by abort"),
        (told(finish_reason=None), False, "http.answer", "/generate: ended by none"),
        (told(), True, "http.answer", "without the log probabilities that were asked for"),
        (httpx.Response(500, json={"error": {"message": "it broke"}}), False, "http.500", "it broke"),
    ],
)
def test_an_answer_that_is_none_is_the_server_s_failure(
    response: httpx.Response, odds: bool, site: str, said: str
) -> None:
    with asking(lambda body: response, odds=odds) as asker, pytest.raises(SessionFailed) as caught:
        answers(asker, PUTS[:1])
    assert caught.value.site == site
    assert said in str(caught.value)

"""Questions put to a server of which every answer is played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from specdebug.apps.evaluation.askers import TOP, Put, ServerAsker
from specdebug.base.errors import SpecDebugError
from specdebug.targets.base import Asked, SessionFailed
from specdebug.targets.http.client import ServerClient
from specdebug.targets.http.server import ServerInfo
from specdebug.targets.http.session import HttpSession
from specdebug.targets.settings import HttpServer
from tests.targets.http.opened import opening

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


def test_odds_are_those_of_the_first_token() -> None:
    def play(body: dict[str, Any]) -> httpx.Response:
        assert body["top_logprobs_num"] == TOP
        assert body["return_text_in_logprobs"] is True
        return told(output_top_logprobs=[[[-0.1, 7, " A"], [-3, 8, None]], [[-0.2, 9, " B"]]])

    with asking(play, odds=True) as asker:
        assert answers(asker, PUTS[:1])[0].top == [(-0.1, " A")]


def test_a_full_queue_is_asked_again() -> None:
    refusals = [httpx.Response(503, headers={"Retry-After": "0"}, json={"error": {"message": "full"}})] * 2
    with asking(lambda body: refusals.pop() if refusals else told()) as asker:
        assert answers(asker, PUTS[:1])[0].text == "so"
    assert not refusals


def test_a_question_that_the_server_declines_is_named() -> None:
    response = httpx.Response(400, json={"error": {"message": "too long"}})
    with asking(lambda body: response) as asker, pytest.raises(SpecDebugError) as caught:
        answers(asker, PUTS[1:])
    assert str(caught.value).startswith("q.jsonl:")
    assert str(caught.value).endswith("this question cannot be served: too long; fewer shots make it shorter")


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

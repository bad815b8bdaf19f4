"""Answers that are none of the interface's: one kind of error, which names route and field, and no memory for them."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from specdebug.scenario.workload import RequestSampling
from specdebug.targets.http.checked import GENERATED, SERVER_INFO, BadAnswer, read
from specdebug.targets.http.client import MOST_BYTES, Declined, ServerClient
from specdebug.targets.http.request import HttpRequest
from specdebug.targets.http.server import ask_server
from tests.targets.http.redirecting import redirecting

META: dict[str, Any] = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "cached_tokens": None,
    "spec_verify_ct": 1,
    "spec_accept_histogram": [0, 1],
    "finish_reason": {"type": "stop", "matched": 7},
    "output_token_logprobs": [[-0.5, 7, None], [0, 8]],
    "anything": {"else": [1]},
}
ANSWER: dict[str, Any] = {"text": "a b", "output_ids": [6, 7], "meta_info": META}
OWN: dict[str, Any] = {
    "speculative_switch": True,
    "violations": [{"signature": "nan@draft.x", "step": 3, "detail": "3 bad", "value": 1.5}],
    "reverts": {"27338": {"27338#1": 2}},
    "reached_sites": {"draft.logits": 4},
    "stack": {"device": "cpu", "flashinfer": None, "arithmetic": {"threads": "1"}},
    "engine": {"state": "running", "step": 9, "pid": 1},
}
INFO: dict[str, Any] = {
    "version": "0.5.13",
    "dtype": "float32",
    "speculative_algorithm": None,
    "page_size": 1,
    "internal_states": [{"avg_spec_accept_length": 2.5}],
    "specdebug": OWN,
}


FOUND = {"signature": "nan@x", "detail": "x"}
OF_AN_ANSWER = [
    ({"text": None}, "text is null, not "),
    ({"text": ["a"]}, "text is a list of 1, not "),
    ({"output_ids": None}, "output_ids is null, not "),
    ({"output_ids": "67"}, "output_ids is '67', not "),
    ({"output_ids": [1, True]}, "output_ids.1 is True, not "),
    ({"output_ids": [1, -1]}, "output_ids.1 is -1, not "),
    ({"output_ids": [2**31]}, "output_ids.0 is 2147483648, not "),
    ({"meta_info": None}, "meta_info is null, not "),
    ({"meta_info": [META]}, "meta_info is a list of 1, not "),
]
OF_ITS_COUNTS = [
    ({"completion_tokens": "2"}, "completion_tokens is '2', not "),
    ({"completion_tokens": 2.0}, "completion_tokens is 2.0, not "),
    ({"completion_tokens": True}, "completion_tokens is True, not "),
    ({"completion_tokens": 10**400}, "completion_tokens is a very long number, not "),
    ({"cached_tokens": -1}, "cached_tokens is -1, not "),
    ({"spec_verify_ct": [1]}, "spec_verify_ct is a list of 1, not "),
    ({"spec_accept_length": float("nan")}, "spec_accept_length is nan, not "),
    ({"spec_accept_rate": "0.5"}, "spec_accept_rate is '0.5', not "),
    ({"spec_accept_histogram": 3}, "spec_accept_histogram is 3, not "),
    ({"spec_accept_histogram": [1] * 5000}, "spec_accept_histogram is a list of 5000, not "),
    ({"spec_accept_histogram": [1, 10**12]}, r"spec_accept_histogram\.1 is 1000000000000, not "),
    ({"spec_accept_histogram": [1, None]}, r"spec_accept_histogram\.1 is null, not "),
    ({"finish_reason": "stop"}, "finish_reason is 'stop', not "),
    ({"finish_reason": {}}, r"finish_reason\.type is missing"),
    ({"finish_reason": {"type": 3}}, r"finish_reason\.type is 3, not "),
    ({"finish_reason": {"type": "stop", "matched": [3]}}, r"finish_reason\.matched is a list of 1, not "),
    ({"output_token_logprobs": [[-0.1]]}, r"output_token_logprobs\.0\.1 is missing"),
    ({"output_token_logprobs": [[2.5, 1]]}, r"output_token_logprobs\.0\.0 is 2\.5, not "),
    ({"output_top_logprobs": [[[-0.1, "x"]]]}, r"output_top_logprobs\.0\.0\.1 is 'x', not "),
]
OF_A_SERVER = [
    ({"version": 5}, "version is 5, not "),
    ({"stream_output": "yes"}, "stream_output is 'yes', not "),
    ({"internal_states": [3]}, r"internal_states\.0 is 3, not "),
    ({"internal_states": [{"avg_spec_accept_length": "2"}]}, r"internal_states\.0\.avg_spec_accept_length is '2'"),
    ({"specdebug": None}, "specdebug is null, not "),
    ({"specdebug": "ours"}, "specdebug is 'ours', not "),
    ({"specdebug": {"violations": None}}, r"specdebug\.violations is null, not "),
    ({"specdebug": {"violations": [{"detail": "x"}]}}, r"specdebug\.violations\.0\.signature is missing"),
    (
        {"specdebug": {"violations": [{"signature": "a b@c\nd", "detail": "x"}]}},
        r"specdebug\.violations\.0\.signature is",
    ),
    (
        {"specdebug": {"violations": [FOUND | {"step": "3"}]}},
        r"specdebug\.violations\.0\.step is '3', not ",
    ),
    ({"specdebug": {"engine": {"step": "x"}}}, r"specdebug\.engine\.step is 'x', not "),
    ({"specdebug": {"reverts": [1]}}, r"specdebug\.reverts is a list of 1, not "),
    ({"specdebug": {"reverts": {"27338": {"a": "b"}}}}, r"specdebug\.reverts\.27338\.a is 'b', not "),
    ({"specdebug": {"reached_sites": {"a": -1}}}, r"specdebug\.reached_sites\.a is -1, not "),
    ({"specdebug": {"stack": {"arithmetic": {"x": [1]}}}}, r"specdebug\.stack\.arithmetic is an object of 1, not"),
    ({"specdebug": {"speculative_switch": 1}}, r"specdebug\.speculative_switch is 1, not "),
]
WRONG = [
    *(("/generate", ANSWER | change, told) for change, told in OF_AN_ANSWER),
    *(("/generate", ANSWER | {"meta_info": META | change}, rf"meta_info\.{told}") for change, told in OF_ITS_COUNTS),
    *(("/server_info", INFO | change, told) for change, told in OF_A_SERVER),
]


@pytest.mark.parametrize(("route", "document", "told"), WRONG)
def test_what_is_wrong_is_named_with_its_route_its_place_and_its_value(
    route: str, document: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadAnswer, match=rf"^{route}: {told}"):
        read(route, GENERATED if route == "/generate" else SERVER_INFO, document)


OF_OLD = {"spec_accept_histogram": None, "spec_verify_ct": 10**8}


@pytest.mark.parametrize("meta", [*({"spec_accept_histogram": [0, most]} for most in (10**8, 2**31 - 1)), OF_OLD])
def test_more_verifies_than_there_can_be_cost_no_memory(meta: dict[str, Any]) -> None:
    held = HttpRequest("a.0", (1, 2, 3), RequestSampling(2), speculative=True)
    tracemalloc.start()
    try:
        held.take(read("/generate", GENERATED, ANSWER | {"meta_info": META | meta}), incremental=False)
        with pytest.raises(BadAnswer, match=r"^/generate: meta_info\.spec_\w+ counts \d+ verifies, of which"):
            held.end()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(BadAnswer, match=r"^/generate: request a\.0 goes on behind 1028 tokens"):
        held.take(read("/generate", GENERATED, ANSWER | {"output_ids": [1] * 2000}), incremental=False)


def asked(ask: Callable[[ServerClient], Any], body: bytes, status: int = 200, **headers: str) -> Any:
    """What a client makes of a body that every route answers."""

    async def run() -> Any:
        transport = httpx.MockTransport(lambda request: httpx.Response(status, content=body, headers=headers))
        client = ServerClient("http://there", transport=transport)
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def events(client: ServerClient) -> list[dict[str, Any]]:
    return [event async for event in client.stream("/generate", {})]


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b"[" * 100_000, b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}"])
def test_a_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(BadAnswer, match=r"^/generate: not a JSON object: "):
        asked(lambda client: client.post("/generate", {}), body)
    with pytest.raises(BadAnswer, match=r"^/generate: not a JSON object: "):
        asked(events, b"data: " + body.replace(b"\n", b"") + b"\n\n")


def test_a_body_has_a_size() -> None:
    huge = b'{"text": "' + b"a" * MOST_BYTES + b'"}'
    with pytest.raises(BadAnswer, match=r"^/generate: the answer has more than 8 MiB"):
        asked(lambda client: client.post("/generate", {}), huge)
    with pytest.raises(BadAnswer, match=r"^/health: the answer has more than 8 MiB"):
        asked(lambda client: client.ask("GET", "/health"), huge)
    with pytest.raises(BadAnswer, match=r"^/generate: an event of the stream has more than 8 MiB"):
        asked(events, b"data: " + huge)


def test_an_event_at_a_time_is_checked() -> None:
    good = b"data: " + json.dumps(ANSWER).encode() + b"\n\n"
    assert len(asked(events, good + good + b"data: [DONE]\n\n")) == 2
    with pytest.raises(BadAnswer, match=r"^/generate: `stream: true` was answered with plain JSON"):
        asked(events, json.dumps(ANSWER).encode(), **{"Content-Type": "application/json"})
    with pytest.raises(BadAnswer, match=r"^/server_info: version is 5, not a valid string"):
        asked(ask_server, json.dumps(INFO | {"version": 5}).encode())
    with pytest.raises(BadAnswer, match=r"^/generate: text is null"):
        asked(events, good + b'data: {"text": null, "meta_info": {}}\n\n')


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b'{"error": {"message": "no", "code": 503}}', 400, "no"),
        (b'{"error": {"message": {"a": 1}, "code": "x"}}', 500, "{'a': 1}"),
        (b'{"error": null, "detail": "no"}', 404, "None"),
        (b"\xff" * 2000, 500, "\\ufffd"),
        (b"[]", 500, "[]"),
    ],
)
def test_the_words_of_an_error_are_bounded_and_its_wait_is_a_number(body: bytes, status: int, told: str) -> None:
    for wait, seconds in (("3", 3.0), ("²", None), ("soon", None), ("-1", None)):
        with pytest.raises(Declined) as caught:
            asked(lambda client: client.post("/x", {}), body, status, **{"Retry-After": wait.encode("latin1")})
        assert (caught.value.status, caught.value.retry_after_s) == (status, seconds)
        assert told in str(caught.value) or "\ufffd" in str(caught.value)
        assert len(str(caught.value)) <= 500


HTTP = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{"meta_info":{}}'


def test_no_connection_is_used_again_since_nobody_would_hear_the_server_close_it() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while (await reader.readuntil(b"\r\n\r\n")) and (await reader.read(2)) is not None:
                writer.write(HTTP)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        client = ServerClient(f"http://{host}:{port}")
        try:
            for _ in range(2):
                assert await client.post("/generate", {}) == {"meta_info": {}}
                assert (await client.ask("POST", "/x", {})).status_code == 200
        finally:
            await client.close()
            server.close()

    asyncio.run(ask())
    assert connections == 4


def test_no_redirect_is_followed_for_the_key_is_of_the_server_that_was_named() -> None:
    async def ask(url: str) -> None:
        client = ServerClient(url, key="secret")
        try:
            assert (await client.ask("GET", "/health")).status_code == 307
            with pytest.raises(Declined) as got:
                await client.get_json("/server_info", {})
            assert got.value.status == 307
            with pytest.raises(Declined):
                await client.post("/generate", {})
            with pytest.raises(Declined):
                await anext(client.stream("/generate", {}))
        finally:
            await client.close()

    with redirecting() as (url, asked, elsewhere):
        asyncio.run(ask(url))
    assert asked == ["Bearer secret"] * 4
    assert elsewhere == []

"""SGLang's interface before vLLM's engine: what requests become there, on an engine that stands for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from specdebug.targets.vllm.inside.engine import EngineThread
from specdebug.targets.vllm.inside.serve import Interface, routes
from tests.targets.vllm.inside.fake_vllm import install

Asking = Callable[[httpx.AsyncClient], Awaitable[Any]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[[Asking], Any]:
    install(monkeypatch)
    told: list[None] = []
    app = routes(Interface(EngineThread({"model": "/a/model"}), lambda: told.append(None)))

    def run(asking: Asking) -> Any:
        async def within() -> Any:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                return await asking(client)

        return asyncio.run(within())

    return run


def body(**more: Any) -> dict[str, Any]:
    params = {"max_new_tokens": more.pop("tokens", 6), "temperature": 0, "ignore_eos": True} | more.pop("params", {})
    return {"input_ids": [5, 6], "sampling_params": params, "rid": "r", **more}


def test_a_whole_answer_has_its_tokens_and_what_its_verifies_accepted(ask: Callable[[Asking], Any]) -> None:
    answer = ask(lambda client: client.post("/generate", json=body())).json()
    meta = answer["meta_info"]
    assert (answer["output_ids"], answer["text"]) == ([1, 2, 3, 4, 5, 6], "xxxxxx")
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (2, 6, 3)
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["spec_verify_ct"], meta["spec_accept_histogram"], meta["spec_accept_length"]) == (3, [0, 3], 2.0)


def test_a_preemption_and_steps_without_drafts_are_counted(ask: Callable[[Asking], Any]) -> None:
    """1, two verified ones, one of the prefill after the preemption, two verified ones, and then one at a time."""
    asked = body(tokens=8) | {"input_ids": [7]}
    meta = ask(lambda client: client.post("/generate", json=asked)).json()["meta_info"]
    assert (meta["completion_tokens"], meta["num_retractions"]) == (8, 1)
    assert (meta["spec_verify_ct"], meta["spec_accept_histogram"]) == (4, [2, 2])


def test_a_prefill_that_is_padded_like_a_verify_is_none(ask: Callable[[Asking], Any]) -> None:
    meta = ask(lambda client: client.post("/generate", json=body(tokens=5) | {"input_ids": [8]})).json()["meta_info"]
    assert (meta["spec_verify_ct"], meta["spec_accept_histogram"]) == (2, [0, 2])


def test_a_stream_goes_on_from_event_to_event_and_a_stop_token_is_told(ask: Callable[[Asking], Any]) -> None:
    stopping = body(stream=True, params={"stop_token_ids": [4]})
    text = ask(lambda client: client.post("/generate", json=stopping)).text
    *events, last = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    ids = [json.loads(event)["output_ids"] for event in events]
    assert last == "[DONE]"
    assert ids == [[1], [1, 2, 3], [1, 2, 3, 4]]
    assert json.loads(events[-1])["meta_info"]["finish_reason"] == {"type": "stop", "matched": 4}


def test_an_abort_ends_a_request_and_a_cache_is_flushed_when_nothing_is_served(ask: Callable[[Asking], Any]) -> None:
    async def asking(client: httpx.AsyncClient) -> Any:
        long = asyncio.create_task(client.post("/generate", json=body(tokens=10**7)))
        while (await client.post("/flush_cache")).status_code == 200:
            await asyncio.sleep(0)
        await client.post("/abort_request", json={"rid": "unknown"})
        await client.post("/abort_request", json={"rid": "r"})
        return (await long).json(), (await client.post("/flush_cache")).status_code

    answer, flushed = ask(asking)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert flushed == 200


def test_what_the_engine_declines_is_400_with_its_words(ask: Callable[[Asking], Any]) -> None:
    answer = ask(lambda client: client.post("/generate", json=body() | {"input_ids": [0]}))
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": "too long"}})


def test_it_says_what_it_is(ask: Callable[[Asking], Any]) -> None:
    async def asking(client: httpx.AsyncClient) -> Any:
        await client.post("/generate", json=body())
        info, model = await client.get("/server_info"), await client.get("/model_info")
        return (await client.get("/health")).status_code, info.json(), model.json()

    health, info, model = ask(asking)
    assert (health, model) == (200, {"model_path": "/a/model"})
    assert (info["version"], info["speculative_algorithm"]) == ("vllm 0", "eagle")
    assert info["internal_states"] == [{"avg_spec_accept_length": 2.0}]

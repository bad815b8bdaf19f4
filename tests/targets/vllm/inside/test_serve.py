"""SGLang's interface before vLLM's engine, and what is wanted besides serving, on an engine that stands for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from specdebug import async_probe
from specdebug.targets.inside.words import facts_in
from specdebug.targets.vllm.inside.engine import EngineThread
from specdebug.targets.vllm.inside.serve import Interface, routes, watch
from tests.targets.vllm.inside.fake_runner import VOCABULARY, Runner
from tests.targets.vllm.inside.fake_vllm import install
from tests.targets.vllm.inside.test_books import scheduler

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


@pytest.mark.parametrize(
    ("first", "tokens", "retracted", "histogram"),
    [
        (7, 8, 1, [2, 2]),  # 1, two verified, one of the prefill after a preemption, two verified, then one at a time
        (8, 5, 0, [0, 2]),  # its prefill is padded like a verify, and is none
    ],
)
def test_preemptions_steps_without_drafts_and_padded_prefills_are_counted(
    ask: Callable[[Asking], Any], first: int, tokens: int, retracted: int, histogram: list[int]
) -> None:
    asked = body(tokens=tokens) | {"input_ids": [first]}
    meta = ask(lambda client: client.post("/generate", json=asked)).json()["meta_info"]
    assert (meta["completion_tokens"], meta["num_retractions"]) == (tokens, retracted)
    assert (meta["spec_verify_ct"], meta["spec_accept_histogram"]) == (sum(histogram), histogram)


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


ENGINE = {"speculative_config": {"num_speculative_tokens": 3}}


def thread(runner: Any) -> Any:
    return SimpleNamespace(
        runner=runner, name_of=lambda rid: rid.removesuffix("-suffix"), scheduler=scheduler(), after_step=None
    )


def test_the_scheduler_s_books_are_looked_at_after_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    made = thread(Runner())
    watch(made, {"engine": ENGINE})
    made.after_step()
    assert capsys.readouterr().err == ""
    made.scheduler.kv_cache_manager.block_pool.blocks[2].ref_cnt = 7
    made.after_step()
    assert "found pools@locks at step 2: block 2 has ref_cnt 7" in capsys.readouterr().err


@pytest.mark.parametrize("large", [True, False])
def test_those_of_a_large_pool_or_of_another_release_are_not_and_that_is_said(
    large: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    made = thread(Runner())
    if large:
        made.scheduler.kv_cache_manager.block_pool.blocks *= 200
    else:
        del made.scheduler.deferred_frees
    watch(made, {"engine": ENGINE})
    assert made.after_step is None
    said = "its pool has more than 1024 blocks" if large else "this release has others"
    assert said in capsys.readouterr().err


def test_probes_are_live_by_the_rules_of_the_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=64, num_gpu_blocks=4),
        model_config=SimpleNamespace(get_vocab_size=lambda: VOCABULARY),
    )
    runner = Runner()
    made = thread(runner)
    made.config = config
    rules = [{"glob": "draft.forward.positions", "mode": "record", "kinds": ["oob"]}]
    tell_reached = watch(made, {"engine": ENGINE, "probes": rules})
    runner.add("a", [1, 2, 3])
    runner.step(a=3)
    tell_reached()
    (told,) = [facts for line in capsys.readouterr().err.splitlines() if (facts := facts_in(line))]
    assert told["reached"] == {"draft.forward.positions": 2}
    async_probe.configure("off")


def test_a_runner_of_another_kind_is_served_with_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch(thread(SimpleNamespace()), {"engine": ENGINE, "tape": str(tmp_path / "t")})
    (told,) = [facts["lost"] for line in capsys.readouterr().err.splitlines() if (facts := facts_in(line))]
    assert told["what"].endswith("but of vLLM's model runner V1")
    assert not told["stand_in"]

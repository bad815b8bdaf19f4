"""What the server says of itself: health, model, state, metrics."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdebug.apps.serve.client import EngineClient
from specdebug.apps.serve.metrics import ServerMetrics
from specdebug.apps.serve.process import Launch
from tests.apps.serve.serving import Serving, wait_until

GREEDY = {"temperature": 0, "max_new_tokens": 12}


def metrics(serving: Serving) -> Mapping[str, float]:
    """Every sample without buckets, by name."""
    families = text_string_to_metric_families(serving.http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if "le" not in sample.labels]
    assert all(sample.labels == {"model_name": "tiny"} for sample in samples)
    return {sample.name: sample.value for sample in samples}


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
def test_a_server_that_serves_is_healthy(serving: Serving, path: str) -> None:
    assert serving.http.get(path).status_code == 200
    wait_until(serving.idle, "nothing is held")


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_the_model_is_named(serving: Serving, path: str) -> None:
    info = serving.http.get(path).json()
    assert (info["model_path"], info["is_generation"], info["model_type"]) == ("tiny", True, "llama")


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_the_state_holds_the_mean_accept_length(serving: Serving, path: str) -> None:
    serving.http.post("/flush_cache")
    told = [serving.generate(text=text, sampling_params=GREEDY)["meta_info"] for text in ("def f(", "import os\n", "x")]
    info = serving.http.get(path).json()
    verifies = sum(meta["spec_verify_ct"] for meta in told)
    accepted = sum(meta["spec_accept_token_num"] for meta in told)
    assert info["internal_states"][0]["avg_spec_accept_length"] == (accepted + verifies) / verifies, "exactly"
    assert info["specdebug"]["speculative_switch"] is True
    assert info["specdebug"]["engine"]["state"] == "ready"
    assert info["max_total_num_tokens"] == 16384


def test_what_no_flag_was_given_for_is_told_as_it_is(serving: Serving) -> None:
    """SGLang's tests reckon with the page size that a server tells, given or not."""
    info = serving.http.get("/server_info").json()
    told = ("page_size", "speculative_num_steps", "speculative_num_draft_tokens", "speculative_draft_model_path",
            "chunked_prefill_size", "disable_radix_cache", "dtype", "attention_backend")  # fmt: skip
    assert [info[name] for name in told] == [1, 3, 4, "tiny-eagle", -1, False, "float32", "flashinfer"]


def test_a_flush_begins_the_mean_anew(serving: Serving) -> None:
    serving.generate(text="def f(", sampling_params=GREEDY)
    serving.http.post("/flush_cache")
    assert serving.http.get("/server_info").json()["internal_states"][0]["avg_spec_accept_length"] == 0


def test_metrics_add_up(serving: Serving) -> None:
    before = metrics(serving)
    answers = [serving.generate(text="def f(x, y):\n" * 3, sampling_params=GREEDY)["meta_info"] for _ in range(3)]
    wait_until(serving.idle, "nothing is held")
    after = metrics(serving)
    for name, key in (
        ("sglang:prompt_tokens_total", "prompt_tokens"),
        ("sglang:generation_tokens_total", "completion_tokens"),
        ("sglang:cached_tokens_total", "cached_tokens"),
    ):
        assert after[name] - before[name] == sum(meta[key] for meta in answers), name
    for name in ("num_requests_total", "time_to_first_token_seconds_count", "e2e_request_latency_seconds_count"):
        assert after[f"sglang:{name}"] - before[f"sglang:{name}"] == 3, name
    between = "sglang:inter_token_latency_seconds_count"
    assert after[between] - before[between] == sum(meta["completion_tokens"] - 1 for meta in answers)
    assert after["sglang:num_running_reqs"] == after["sglang:num_queue_reqs"] == after["sglang:token_usage"] == 0
    assert 0 < after["sglang:cache_hit_rate"] < 1
    assert after["sglang:spec_accept_length"] >= 1


def test_there_are_no_metrics_unless_asked_for() -> None:
    with Serving() as serving:
        assert serving.http.get("/metrics").status_code == 404


def test_requests_are_in_the_log_when_asked_for() -> None:
    with Serving(log_requests=True) as serving:
        serving.generate(text="x", rid="mine", sampling_params={"max_new_tokens": 1})
        assert any("request mine: 1 tokens" in line for line in serving.said)


def test_gauges_are_those_of_the_last_step() -> None:
    client = EngineClient(Launch({}), watchdog_s=1, most_running=1, say=print, pass_on=print)
    registry = ServerMetrics(client, "m", 100).registry
    client.totals.gauge({"running": 3, "waiting": 2, "used": 50})
    for name, value in (("num_running_reqs", 3), ("num_queue_reqs", 2), ("token_usage", 0.5)):
        assert registry.get_sample_value(f"sglang:{name}", {"model_name": "m"}) == value


def test_a_check_by_a_token_is_shared_and_needs_none_while_others_are_generated(serving: Serving) -> None:
    before = metrics(serving)["sglang:num_requests_total"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: serving.http.get("/health_generate").status_code, range(32)))
    assert answers == [200] * 32
    wait_until(serving.idle, "nothing is held")
    own = metrics(serving)["sglang:num_requests_total"] - before
    assert 1 <= own <= 32
    body = {"text": "def f(", "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}}
    with serving.under_way(**body):
        assert serving.http.get("/health_generate").status_code == 200
        assert len(serving.client.open) == 1
    wait_until(serving.idle, "nothing is held")
    assert metrics(serving)["sglang:num_requests_total"] - before == own + 1


def test_those_who_ask_at_once_share_the_engine_s_answer() -> None:
    async def main() -> None:
        client = EngineClient(Launch({}), watchdog_s=1, most_running=1, say=print, pass_on=print)
        asked: list[Any] = []
        client.state, client._send = "ready", asked.append  # type: ignore[method-assign]
        two = asyncio.gather(client.coverage(), client.coverage())
        await asyncio.sleep(0)
        client._hear({"event": "coverage", "hits": {"1": 2}})
        assert await two == [{"event": "coverage", "hits": {"1": 2}}] * 2
        assert asked == [{"do": "info"}]

    asyncio.run(main())

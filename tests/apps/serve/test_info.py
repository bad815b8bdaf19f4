"""What the server says of itself: health, model, state, metrics."""

import asyncio
import concurrent.futures
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdebug.apps.serve.client import EngineClient
from specdebug.apps.serve.process import Launch
from tests.apps.serve.serving import Serving, wait_until

GREEDY = {"temperature": 0, "max_new_tokens": 12}


def metrics(serving: Serving) -> Mapping[str, float]:
    """Every sample without buckets, by name."""
    families = text_string_to_metric_families(serving.http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if "le" not in sample.labels]
    assert all(sample.labels == {"model_name": "tiny"} for sample in samples)
    return {sample.name: sample.value for sample in samples}


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
    serving.http.post("/flush_cache")  # the mean begins anew
    assert serving.http.get(path).json()["internal_states"][0]["avg_spec_accept_length"] == 0


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


def test_requests_are_in_the_log_when_asked_for_and_metrics_only_then() -> None:
    with Serving(log_requests=True) as serving:
        assert serving.http.get("/metrics").status_code == 404
        serving.generate(text="x", rid="mine", sampling_params={"max_new_tokens": 1})
        assert any("request mine: 1 tokens" in line for line in serving.said)


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


CHANGING = ["/generate", "/flush_cache", "/abort_request", "/v1/completions", "/v1/chat/completions"]


@pytest.fixture(scope="module")
def named() -> Iterator[Serving]:
    with Serving(hosts=frozenset({"localhost", "my.name"}), enable_metrics=True) as server:
        yield server


@pytest.fixture(scope="module")
def keyed() -> Iterator[Serving]:
    with Serving(api_key="s3cret", enable_metrics=True) as server:
        yield server


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:30000", "127.0.0.1", "127.0.0.1:80", "127.8.9.1", "[::1]", "[::1]:30000", "my.name:1",
     "[::ffff:127.0.0.1]:5"],
)  # fmt: skip
def test_names_of_this_machine_are_taken(named: Serving, host: str) -> None:
    assert named.http.get("/v1/models", headers={"Host": host}).status_code == 200
    assert named.http.post("/flush_cache", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:30000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]:1",
     "0.0.0.0", "[::]", "me@127.0.0.1", "127.0.0.1:80:80", "[::1", "::1", "127.1", "2130706433", "localhost/x", "",
     "127.0.0.1\\evil", "[evil.example]"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/flush_cache", "/health", "/metrics"])
def test_other_names_are_refused_on_every_route(named: Serving, host: str, path: str) -> None:
    method = "POST" if path in CHANGING else "GET"
    answer = named.http.request(method, path, headers={"Host": host})
    assert answer.status_code == 403
    assert "--api-key" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", [*CHANGING, "/health_generate"])
def test_pages_of_other_sites_change_nothing(
    named: Serving, keyed: Serving, path: str, headers: dict[str, str]
) -> None:
    method = "POST" if path in CHANGING else "GET"
    for server in (named, keyed):
        key = {"Authorization": "Bearer s3cret"}
        assert server.http.request(method, path, headers={**key, **headers}, content=b"{}").status_code == 403


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer s3cre", "Basic s3cret", "s3cret", "Bearer s3crét"])
@pytest.mark.parametrize("path", [*CHANGING, "/health_generate", "/server_info", "/v1/models"])
def test_without_the_key_nothing_is_done_or_told(keyed: Serving, path: str, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    method = "POST" if path in CHANGING else "GET"
    answer = keyed.http.request(method, path, headers=headers, content=b"not even read")  # type: ignore[arg-type]
    assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models"])
def test_a_key_may_be_sent_under_any_name_and_monitors_need_none(keyed: Serving, path: str) -> None:
    key = {"Host": "what.ever", "Authorization": "bearer  s3cret"} if path == "/v1/models" else {}
    assert keyed.http.get(path, headers={"Sec-Fetch-Site": "cross-site", **key}).status_code == 200

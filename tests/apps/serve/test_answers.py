"""``/generate``: what it answers, as text and as a stream, and what it does when a client goes away."""

import asyncio
import concurrent.futures
import itertools
import json
import socket
from typing import Any

import pytest

from specdebug.apps.serve.answers import Piece, PiecewiseRequest, merged
from specdebug.apps.serve.requests import ServedRequest, Wish
from specdebug.apps.serve.text import GrowingText, ModelText
from tests.apps.serve.serving import EAGLE, Serving, events_of, wait_until

PROMPT = "def main():\n    return " * 4
GREEDY = {"temperature": 0, "max_new_tokens": 12}
LONG: dict[str, Any] = {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}


def test_an_answer_has_text_tokens_and_what_they_cost(serving: Serving) -> None:
    answer = serving.generate(text=PROMPT, sampling_params=GREEDY)
    meta = answer["meta_info"]
    assert answer["text"] == serving.state.model.decode(answer["output_ids"])
    assert meta["completion_tokens"] == len(answer["output_ids"]) == 12
    assert meta["prompt_tokens"] == len(serving.state.model.encode(PROMPT))
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert meta["e2e_latency"] > 0
    assert meta["weight_version"] == "default"
    verifies, histogram = meta["spec_verify_ct"], meta["spec_accept_histogram"]
    assert sum(histogram) == verifies > 0
    assert sum(drafts * times for drafts, times in enumerate(histogram)) == meta["spec_accept_token_num"]
    assert meta["spec_draft_token_num"] == 3 * verifies
    assert meta["spec_accept_rate"] == meta["spec_accept_token_num"] / meta["spec_draft_token_num"]
    assert meta["spec_accept_length"] == 12 / verifies


def test_a_prompt_hits_the_cache_until_it_is_flushed(serving: Serving) -> None:
    def cached() -> int:
        return int(serving.generate(text=PROMPT, sampling_params=GREEDY)["meta_info"]["cached_tokens"])

    assert serving.http.post("/flush_cache").status_code == 200
    assert cached() == 0 < cached()
    assert serving.http.get("/flush_cache").status_code == 200
    assert cached() == 0


@pytest.mark.parametrize("speculative", [True, False])
def test_a_stream_s_last_text_is_the_answer_s(serving: Serving, speculative: bool) -> None:
    body = {"text": PROMPT, "sampling_params": GREEDY, "speculative": speculative}
    answer = serving.generate(**body)
    with serving.http.stream("POST", "/generate", json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *events, done = events_of(response)
    assert done == "[DONE]"
    texts = [event["text"] for event in events]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == answer["text"]
    assert events[-1]["output_ids"] == answer["output_ids"]
    assert [event["meta_info"]["finish_reason"] is None for event in events] == [True] * (len(events) - 1) + [False]


def test_a_stop_string_is_cut_off_and_told(serving: Serving) -> None:
    whole = serving.generate(text=PROMPT, sampling_params={**GREEDY, "max_new_tokens": 40})
    stop = whole["text"][6:9]
    answer = serving.generate(text=PROMPT, sampling_params={**GREEDY, "stop": [stop], "max_new_tokens": 40})
    assert answer["text"] == whole["text"][: whole["text"].index(stop)]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    kept = serving.generate(text=PROMPT, sampling_params={**GREEDY, "stop": stop, "no_stop_trim": True})
    assert stop in kept["text"]


@pytest.mark.parametrize("speculative", [True, False])
def test_log_probabilities_are_the_tokens_own(serving: Serving, speculative: bool) -> None:
    answer = serving.generate(
        text=PROMPT,
        sampling_params=GREEDY,
        return_logprob=True,
        top_logprobs_num=2,
        speculative=speculative,
        return_text_in_logprobs=speculative,
    )
    meta = answer["meta_info"]
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    for (own, token, text), best in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert best[0][:2] == [own, token], "a greedy token is the likeliest"
        assert 0 >= own >= best[1][0]
        assert text == (serving.state.model.token(token) if speculative else None)


@pytest.mark.parametrize("flags", [{}, {"chunked_prefill_size": 16, "page_size": 4}])
def test_a_prompt_s_log_probabilities_are_those_of_the_same_tokens_as_output(flags: dict[str, Any]) -> None:
    with Serving({**EAGLE, **flags}) as serving:
        before = serving.state.model.encode(PROMPT)
        ask = {"sampling_params": GREEDY, "return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [5, 9]}
        answer = serving.generate(input_ids=before, **ask)
        whole, start = before + answer["output_ids"], len(before) - 1
        for _ in range(2):  # the second time all of it is in the cache
            meta = serving.generate(input_ids=whole, logprob_start_len=start, **ask)["meta_info"]
            assert meta["cached_tokens"] <= start
            assert meta["input_token_logprobs"][0] == [None, whole[start], None]
            assert meta["input_top_logprobs"][0] is meta["input_token_ids_logprobs"][0] is None
            known = answer["meta_info"]
            for kind in ("token_logprobs", "top_logprobs", "token_ids_logprobs"):
                found, expected = meta[f"input_{kind}"][1:], known[f"output_{kind}"]
                assert len(found) == len(expected) == 12
                for one, other in zip(found, expected, strict=True):
                    pairs = zip(one, other, strict=True) if kind != "token_logprobs" else [(one, other)]
                    for (value, token, _), (same, its, _) in pairs:
                        assert token == its
                        assert value == pytest.approx(same, abs=1e-3)


def test_several_samples_of_a_prompt_are_a_list(serving: Serving) -> None:
    params = {"temperature": 1.5, "max_new_tokens": 16, "n": 3}
    answers: Any = serving.generate(text=[PROMPT, "class A"], rid=["a", "b"], sampling_params=params)
    assert [answer["meta_info"]["id"] for answer in answers] == ["a_0", "a_1", "a_2", "b_0", "b_1", "b_2"]
    assert len({answer["text"] for answer in answers}) > 2
    one: Any = serving.generate(text=PROMPT, sampling_params={**GREEDY, "n": 2})
    assert one[0]["output_ids"] == one[1]["output_ids"]
    mixed = {"text": ["x", "y"], "sampling_params": [{"n": 1}, {"n": 2}]}
    assert serving.refused("/generate", mixed)["param"] == "sampling_params"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slots(serving: Serving, stream: bool) -> None:
    body = {"text": PROMPT, "sampling_params": LONG, "stream": True, "rid": "left"}
    if stream:
        with serving.under_way(**body):
            assert not serving.idle()
    else:
        host, port = serving.url.removeprefix("http://").split(":")
        data = json.dumps({**body, "stream": False}).encode()
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            wait_until(lambda: serving.client.totals.running, "it runs")
    wait_until(serving.idle, "nothing is held")


def test_an_aborted_request_ends_with_what_it_has(serving: Serving) -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        waiting = {
            rid: pool.submit(serving.generate, text=PROMPT, sampling_params=LONG, rid=rid) for rid in ("one", "two")
        }
        wait_until(lambda: serving.client.totals.running == 2, "both run")
        assert serving.http.post("/abort_request", json={"rid": "one"}).status_code == 200
        assert waiting["one"].result()["meta_info"]["finish_reason"]["type"] == "abort"
        assert not waiting["two"].done()
        assert serving.http.post("/abort_request", json={"abort_all": True}).status_code == 200
        assert waiting["two"].result()["meta_info"]["finish_reason"]["type"] == "abort"
    wait_until(serving.idle, "nothing is held")


def test_a_name_that_is_served_is_refused(serving: Serving) -> None:
    body = {"text": PROMPT, "sampling_params": LONG, "stream": True, "rid": "mine"}
    with serving.under_way(**body):
        assert serving.refused("/generate", {"text": "x", "rid": "mine"})["param"] == "rid"
        assert "while no request" in serving.refused("/flush_cache", {})["message"]
    wait_until(serving.idle, "nothing is held")
    assert serving.generate(text="x = ", rid="mine", sampling_params=GREEDY)["meta_info"]["id"] == "mine"


@pytest.mark.parametrize("stream", [True, False])
def test_what_can_never_fit_is_refused_before_an_answer_begins(serving: Serving, stream: bool) -> None:
    body = {"text": "x", "sampling_params": {"max_new_tokens": 5000}, "stream": stream}
    assert "context_length is 2048" in serving.refused("/generate", body)["message"]
    assert serving.refused("/generate", {"text": "x" * 10**6})["param"] == "text"
    assert (
        "input_ids: must be a whole number from 0 to 2047"
        in serving.refused("/generate", {"input_ids": [10**6], "stream": stream})["message"]
    )


def test_a_full_queue_says_when_to_come_back() -> None:
    with Serving({**EAGLE, "max_running_requests": 1}, max_queued_requests=1) as serving:
        body = {"text": [PROMPT] * 2, "sampling_params": LONG, "stream": True}
        with serving.under_way(**body):
            refused = serving.http.post("/generate", json={"text": PROMPT})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        wait_until(serving.idle, "nothing is held")
        serving.generate(text=PROMPT, sampling_params=GREEDY)


def test_a_stream_may_carry_only_what_is_new() -> None:
    with Serving(incremental_output=True) as serving:
        answer = serving.generate(text=PROMPT, sampling_params=GREEDY, return_logprob=True)
        body = {"text": PROMPT, "sampling_params": GREEDY, "stream": True, "return_logprob": True}
        with serving.http.stream("POST", "/generate", json=body) as response:
            events = [event for event in events_of(response) if event != "[DONE]"]
        assert "".join(event["text"] for event in events) == answer["text"]
        assert [token for event in events for token in event["output_ids"]] == answer["output_ids"]
        logprobs = [each for event in events for each in event["meta_info"]["output_token_logprobs"]]
        assert [token for _, token, _ in logprobs] == answer["output_ids"]


def streamed(rid: str) -> PiecewiseRequest:
    request = ServedRequest(Wish(rid, [1], {"max_new_tokens": 9}), rid)
    return PiecewiseRequest(request, GrowingText(ModelText("tiny")), lambda piece: repr((rid, piece.since)).encode())


def grow(stream: PiecewiseRequest, *ids: int) -> None:
    stream.request.output_ids += ids
    stream.request.news.set()


def test_what_comes_while_none_reads_is_one_event() -> None:
    async def main() -> None:
        made: list[Piece] = []
        request = ServedRequest(Wish("a", [1], {"max_new_tokens": 9}), "a")

        def make(piece: Piece) -> bytes:
            made.append(piece)
            return b"event"

        stream = PiecewiseRequest(request, GrowingText(ModelText("tiny")), make)
        grow(stream, 5)
        events = merged([stream], print)
        assert await anext(events) == b"event"
        for token in range(6, 1000):
            grow(stream, token)
        assert len(made) == 1, "none is made that is not asked for"
        await anext(events)
        assert [piece.since for piece in made] == [0, 1]
        request.end(reason="length")
        assert [each async for each in events] == [b"event"]
        assert [piece.since for piece in made] == [0, 1, 995]

    asyncio.run(main())


def test_streams_of_one_body_come_as_they_grow_and_end_apart() -> None:
    async def main() -> None:
        one, two = streamed("one"), streamed("two")
        events = merged([one, two], print)
        grow(one, 5)
        grow(two, 6, 7)
        assert [await anext(events), await anext(events)] == [b"('one', 0)", b"('two', 0)"]
        coming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert not coming.done()
        two.request.end(reason="length")
        assert await coming == b"('two', 2)"
        coming = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        grow(one, 8)
        assert await coming == b"('one', 1)"
        one.request.end(rejected="no")
        assert (await anext(events)).startswith(b'data: {"object":"error"')

    asyncio.run(main())


def test_an_error_of_ours_ends_one_stream_and_is_said() -> None:
    async def main() -> None:
        said: list[str] = []

        def make(piece: Piece) -> bytes:
            raise KeyError("ours")

        request = ServedRequest(Wish("a", [1], {"max_new_tokens": 9}), "a")
        bad, good = PiecewiseRequest(request, GrowingText(ModelText("tiny")), make), streamed("b")
        for each in (bad, good):
            grow(each, 5)
            each.request.end(reason="length")
        error, last = [each async for each in merged([bad, good], said.append)]
        assert b"internal error: KeyError" in error
        assert last == b"('b', 0)"
        assert "KeyError: 'ours'" in said[0]

    asyncio.run(main())

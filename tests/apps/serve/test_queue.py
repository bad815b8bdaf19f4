"""The order of requests: shares, by tokens, of the bodies that wait."""

from __future__ import annotations

from specdebug.apps.serve.queue import FairQueue
from specdebug.apps.serve.served import ServedRequest, Wish
from tests.apps.serve.serving import EAGLE, Serving, wait_until

LONG = {"max_new_tokens": 1500, "ignore_eos": True}


def request(rid: str, tokens: int) -> ServedRequest:
    return ServedRequest(Wish(rid, [1], {"max_new_tokens": tokens - 1}), rid)


def order(queue: FairQueue, count: int) -> list[str]:
    return [found.wish.rid for _ in range(count) if (found := queue.pop()) is not None]


def test_equals_go_in_the_order_in_which_they_came() -> None:
    queue = FairQueue()
    for number in range(20):
        queue.add([request(str(number), 100)])
    assert order(queue, 99) == [str(number) for number in range(20)]
    assert queue.pop() is None


def test_a_short_one_overtakes_long_ones_that_wait() -> None:
    queue = FairQueue()
    for number in range(60):
        queue.add([request(f"long {number}", 2000)])
    assert order(queue, 8) == [f"long {number}" for number in range(8)]
    queue.add([request("short", 20)])
    assert order(queue, 1) == ["short"]


def test_a_batch_is_passed_by_who_comes_behind_it() -> None:
    queue = FairQueue()
    queue.add([request(f"batch {number}", 50) for number in range(1000)])
    order(queue, 8)
    queue.add([request("one", 200)])
    assert "one" in order(queue, 6)


def test_a_long_one_does_not_wait_for_ever() -> None:
    queue = FairQueue()
    queue.add([request("long", 2000)])
    served = []
    for number in range(1000):
        queue.add([request(f"short {number}", 20)])
        served += order(queue, 1)
    assert "long" in served


def test_what_has_ended_is_passed_over() -> None:
    queue = FairQueue()
    gone, left = request("gone", 2), request("left", 3)
    queue.add([gone, left])
    gone.end(reason="abort")
    assert len(queue) == 1
    assert order(queue, 2) == ["left"]


def test_the_engine_is_given_what_it_runs_and_a_waiting_one_can_be_aborted() -> None:
    with Serving({**EAGLE, "max_running_requests": 2}) as serving:
        prompts = [f"def f{number}(" for number in range(5)]
        body = {"text": prompts, "rid": [f"r{at}" for at in range(5)], "sampling_params": LONG}
        with serving.under_way(**body):
            wait_until(lambda: serving.client.totals.running == 2, "two run")
            assert serving.client.totals.waiting == 0
            assert serving.client.waiting == 3
            serving.http.post("/abort_request", json={"rid": "r4"})
            assert serving.client.waiting == 2
            serving.http.post("/abort_request", json={"rid": "r0"})
            wait_until(lambda: serving.client.waiting == 1, "the next one runs")
            assert serving.http.post("/flush_cache").status_code == 400
        wait_until(serving.idle, "nothing is held")
        assert serving.generate(text="x", sampling_params={"max_new_tokens": 1})["text"]

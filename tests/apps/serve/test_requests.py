"""The order of requests: shares, by tokens, of the bodies that wait, and of those that run."""

import json

import pytest

from specdebug.apps.serve.requests import TURN, FairQueue, ServedRequest, Wish
from tests.apps.serve.serving import EAGLE, Serving, wait_until

LONG = {"max_new_tokens": 1500, "ignore_eos": True}


def request(rid: str, tokens: int) -> ServedRequest:
    return ServedRequest(Wish(rid, [1], {"max_new_tokens": tokens - 1}), rid)


class Engine:
    """An engine of so many places; each step gives a token to every request that has one."""

    def __init__(self, places: int) -> None:
        self.queue = FairQueue(places)
        self.running: list[ServedRequest] = []
        self.set_back: list[ServedRequest] = []
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._places = places

    def add(self, *requests: ServedRequest) -> None:
        self.queue.add(requests)
        self.send()

    def send(self) -> None:
        for each, gives_way in self.queue.to_send():
            self.begun.append(each.wish.rid)
            if gives_way is not None:
                self.running.remove(gives_way)
                self.set_back.append(gives_way)
            self.running.append(each)
        while self.set_back and len(self.running) < self._places:
            self.running.append(self.set_back.pop(0))
        assert len(self.running) <= self._places

    def step(self) -> None:
        self.queue.served(len(self.running))
        for each in list(self.running):
            each.output_ids.append(0)
            if len(each.output_ids) == each.wish.sampling["max_new_tokens"]:
                self.running.remove(each)
                self.ended.append(each.wish.rid)
                each.end(reason="length")
                self.queue.ended(each)
        self.send()

    def steps_until(self, rid: str) -> int:
        steps = 0
        while rid not in self.ended:
            self.step()
            steps += 1
        return steps


@pytest.mark.parametrize("before", [0, TURN // 2, TURN, 1000])
def test_a_short_one_waits_for_no_more_than_a_turn_of_long_ones(before: int) -> None:
    """64 long streams held every place until the first had ended."""
    engine = Engine(8)
    for number in range(64):
        engine.add(request(f"long {number}", 1900))
    for _ in range(before):
        engine.step()
    for number in range(20):
        engine.add(request(f"short {number}", 9))
        assert engine.steps_until(f"short {number}") <= TURN + 8
    engine.steps_until("long 63")
    assert engine.ended[20:] == sorted(engine.ended[20:], key=lambda rid: int(rid.split()[1]) // 8)


def test_a_long_one_does_not_wait_for_ever() -> None:
    engine = Engine(1)
    engine.add(request("long", 2000))
    number = 0
    while "long" not in engine.ended:
        engine.add(request(f"short {number}", 20))
        for _ in range(18):
            engine.step()
        number += 1
    assert number < 1000


def test_what_has_ended_is_passed_over() -> None:
    engine = Engine(1)
    engine.add(request("running", 50))
    gone, left = request("gone", 2), request("left", 3)
    engine.add(gone, left)
    gone.end(reason="abort")
    assert len(engine.queue) == 1
    engine.steps_until("left")
    assert engine.begun == ["running", "left"]


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


def test_one_that_gave_up_its_place_goes_on_with_the_same_text() -> None:
    sampling = {"max_new_tokens": 300, "ignore_eos": True, "temperature": 0}
    with Serving({**EAGLE, "max_running_requests": 1}) as serving:
        alone = serving.generate(text="def f(", sampling_params=sampling)
        with serving.http.stream(
            "POST", "/generate", json={"text": "def f(", "stream": True, "sampling_params": sampling}
        ) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            short = serving.generate(text="x", sampling_params={"max_new_tokens": 2})
            assert short["meta_info"]["completion_tokens"] == 2
            assert serving.client.open, "the long one has not ended"
            *_, last, _ = lines
        again = serving.http.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 1}})
        assert again.status_code == 200
    answer = json.loads(last.removeprefix("data: "))
    assert answer["output_ids"] == alone["output_ids"]
    assert answer["meta_info"]["num_retractions"] == 1

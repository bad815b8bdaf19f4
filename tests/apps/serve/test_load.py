"""Many clients that do as they like: each request ends in one way, and nothing is left of any."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import httpx
import pytest

from tests.apps.serve.serving import EAGLE, Serving, wait_until

CLIENTS, TURNS = 40, 5


class Crowd:
    """Clients of one server, each with a random stream of its own. ``ends`` counts how requests ended."""

    def __init__(self, serving: Serving, http: httpx.AsyncClient) -> None:
        self.serving, self.http = serving, http
        self.ends: Counter[str] = Counter()

    async def client(self, number: int) -> None:
        draw = random.Random(number)
        for turn in range(TURNS):
            act = draw.choice([self.whole, self.streamed, self.left, self.aborted, self.bad])
            self.ends[await act(draw, f"{number}-{turn}")] += 1

    def body(self, draw: random.Random, rid: str) -> dict[str, object]:
        shared = [7] * draw.choice([0, 16, 64])
        ids = shared + [draw.randrange(1, 2048) for _ in range(draw.randrange(1, 40))]
        sampling = {"temperature": draw.choice([0, 1]), "max_new_tokens": draw.randrange(1, 24), "ignore_eos": True}
        return {"input_ids": ids, "sampling_params": sampling, "rid": rid, "speculative": draw.random() < 0.8}

    async def whole(self, draw: random.Random, rid: str) -> str:
        answer = (await self.http.post("/generate", json=self.body(draw, rid))).json()
        return str(answer["meta_info"]["finish_reason"]["type"])

    async def streamed(self, draw: random.Random, rid: str) -> str:
        async with self.http.stream("POST", "/generate", json={**self.body(draw, rid), "stream": True}) as response:
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert sum('"finish_reason":{' in line for line in lines) == 1
        return "streamed"

    async def left(self, draw: random.Random, rid: str) -> str:
        async with self.http.stream("POST", "/generate", json={**self.body(draw, rid), "stream": True}) as response:
            async for _ in response.aiter_lines():
                break
        return "left"

    async def aborted(self, draw: random.Random, rid: str) -> str:
        asked = asyncio.create_task(self.whole(draw, rid))
        await self.http.post("/abort_request", json={"rid": rid})
        assert await asked in ("abort", "length")
        return "aborted"

    async def bad(self, draw: random.Random, rid: str) -> str:
        body = {**self.body(draw, rid), **draw.choice([{"input_ids": [10**6]}, {"text": "x"}, {"n": 3}])}
        assert (await self.http.post("/generate", json=body)).status_code == 400
        return "bad"


@pytest.mark.slow
def test_nothing_is_left_of_a_crowd() -> None:
    with Serving({**EAGLE, "memory": {"num_slots": 1024, "guards": True}, "page_size": 4}) as serving:

        async def crowd() -> Counter[str]:
            async with httpx.AsyncClient(base_url=serving.url, timeout=300, limits=httpx.Limits()) as http:
                everybody = Crowd(serving, http)
                await asyncio.gather(*(everybody.client(number) for number in range(CLIENTS)))
                return everybody.ends

        ends = asyncio.run(crowd())
        assert sum(ends.values()) == CLIENTS * TURNS
        assert not ends["error"]
        wait_until(serving.idle, "nothing is held")
        assert serving.http.get("/server_info").json()["specdebug"]["violations"] == []
        assert not serving.said
        assert serving.http.post("/flush_cache").status_code == 200
        assert serving.generate(text="x", sampling_params={"max_new_tokens": 1})["text"]

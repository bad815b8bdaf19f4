"""Put a crowd at ``specdebug serve`` for minutes: every request ends in exactly one way, and nothing is left of any.

``python benchmarks/serve_load.py [--clients 200] [--minutes 10] [--seed 0] [--json FILE]`` starts a server of the tiny
model with guards around its buffers, and has so many clients do as they like: ask and wait, read a stream to its end,
leave in the middle of an answer or of a stream, abort, send what is no request. Meanwhile it looks at the memory, the
file descriptors and the threads of both processes. At the end the server must be idle, hold no slot and no connection,
have found nothing wrong, and still answer. Exit code 1 if any of it is not so.

Memory counts as flat if the median of the last third of the samples is at most 5 % and 16 MiB above that of the middle
third: the first third fills caches, of Python's and of the allocator's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

FLAGS = (
    "--model-path", "tiny", "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4", "--max-running-requests", "16",
    "--page-size", "4", "--max-queued-requests", "120", "--memory-guards", "--port", "0", "--enable-metrics",
)  # fmt: skip
SAMPLE_S = 5.0
IDLE_S = 30.0
GROWTH, GROWTH_BYTES = 1.05, 16 << 20
NONSENSE: tuple[bytes, ...] = (
    b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"text": 5}', b'{"text": "x", "input_ids": [1]}', b'{"input_ids": [1e9]}',
    b'{"text": "x", "sampling_params": {"temperature": -1}}', b'{"text": "x", "sampling_params": {"top_p": "much"}}',
    b'{"input_ids": [99999999]}', b'{"text": "x", "nonsense": 1}', b"[" * 5000, b'{"text": ' + b"9" * 6000 + b"}",
)  # fmt: skip


class Wrong(Exception):
    """A request ended as none may."""


@dataclass
class Sample:
    """Both processes at one moment: bytes of memory, file descriptors, threads; ``open``: requests that run or wait."""

    at_s: float
    front_bytes: int
    engine_bytes: int
    front_files: int
    engine_files: int
    front_threads: int
    open: int


@dataclass
class Outcome:
    """All that was seen. ``ends``: how requests ended, each counted once. ``problems``: what must not be."""

    clients: int
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    failed: int = 0
    """Requests that ended as none may."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        samples = [asdict(each) for each in self.samples]
        return {**vars(self), "ends": dict(self.ends), "acts": dict(self.acts), "samples": samples}


class Crowd:
    """Clients of one server until ``until`` (by ``time.monotonic``), each with a random stream of its own."""

    def __init__(self, http: httpx.AsyncClient, outcome: Outcome, seed: int, until: float) -> None:
        self._http, self._outcome, self._seed, self._until = http, outcome, seed, until
        acts = ((self.whole, 30), (self.streamed, 25), (self.left_whole, 10), (self.left_stream, 15))
        self._acts = (*acts, (self.aborted, 10), (self.nonsense, 10))

    async def client(self, number: int) -> None:
        draw, turn = random.Random(self._seed * 1_000_003 + number), 0
        acts, weights = zip(*self._acts, strict=True)
        while time.monotonic() < self._until:
            turn += 1
            act: Callable[[random.Random, str], Awaitable[str]] = draw.choices(acts, weights)[0]
            self._outcome.acts[act.__name__] += 1
            try:
                self._outcome.ends[await act(draw, f"{number}-{turn}-")] += 1
            except (Wrong, httpx.HTTPError, ValueError, KeyError) as error:
                self._outcome.failed += 1
                self._outcome.problems.append(f"{act.__name__} {number}-{turn}: {type(error).__name__}: {error}")

    def _body(self, draw: random.Random, rid: str, *, stream: bool = False) -> dict[str, Any]:
        shared = [7] * draw.choice([0, 16, 64, 200])
        ids = shared + [draw.randrange(1, 2048) for _ in range(draw.randrange(1, 60))]
        sampling = {"temperature": draw.choice([0, 0, 1]), "max_new_tokens": draw.randrange(1, 40)}
        return {
            "input_ids": ids,
            "sampling_params": {**sampling, "ignore_eos": True},
            "rid": rid,
            "stream": stream,
            "speculative": draw.random() < 0.8,
        }

    async def whole(self, draw: random.Random, rid: str) -> str:
        body = self._body(draw, rid)
        return self._ended(await self._http.post("/generate", json=body), body)

    async def aborted(self, draw: random.Random, rid: str) -> str:
        body = self._body(draw, rid)
        asked = asyncio.create_task(self._http.post("/generate", json=body))
        await asyncio.sleep(draw.random() * 0.2)
        await self._http.post("/abort_request", json={"rid": rid})
        return self._ended(await asked, body)

    async def left_whole(self, draw: random.Random, rid: str) -> str:
        asked = asyncio.create_task(self._http.post("/generate", json=self._body(draw, rid)))
        done, _ = await asyncio.wait([asked], timeout=draw.random() * 0.3)
        asked.cancel()
        await asyncio.wait([asked])
        return "answered before it was left" if done else "left while waiting"

    async def streamed(self, draw: random.Random, rid: str) -> str:
        return await self._stream(self._body(draw, rid, stream=True), None)

    async def left_stream(self, draw: random.Random, rid: str) -> str:
        return await self._stream(self._body(draw, rid, stream=True), draw.randrange(1, 4))

    async def _stream(self, body: dict[str, Any], leave_after: int | None) -> str:
        events: list[str] = []
        async with self._http.stream("POST", "/generate", json=body) as response:
            if response.status_code == 503:
                return "refused: queue full"
            if response.status_code != 200:
                raise Wrong(f"status {response.status_code}: {(await response.aread())[:200]!r}")
            async for line in response.aiter_lines():
                events += [line] if line else []
                if leave_after is not None and len(events) >= leave_after:
                    return "left in a stream"
        finals = sum('"finish_reason":{' in line for line in events)
        if events[-1:] != ["data: [DONE]"] or finals != 1:
            raise Wrong(f"a stream with {finals} ends, the last line {events[-1:]}")
        return "stream ended"

    async def nonsense(self, draw: random.Random, rid: str) -> str:
        path = draw.choice(["/generate", "/v1/completions", "/v1/chat/completions"])
        headers = {"content-type": "application/json"}
        response = await self._http.post(path, content=draw.choice(NONSENSE), headers=headers)
        if response.status_code not in (400, 413):
            raise Wrong(f"nonsense at {path} is answered with {response.status_code}: {response.text[:200]}")
        return "refused: nonsense"

    @staticmethod
    def _ended(response: httpx.Response, body: dict[str, Any]) -> str:
        if response.status_code == 503 and "retry-after" in response.headers:
            return "refused: queue full"
        if response.status_code != 200:
            raise Wrong(f"status {response.status_code}: {response.text[:200]}")
        meta = response.json()["meta_info"]
        reason, tokens = meta["finish_reason"]["type"], meta["completion_tokens"]
        most = body["sampling_params"]["max_new_tokens"]
        if reason not in ("length", "abort") or (reason == "length") != (tokens == most):
            raise Wrong(f"ended by {reason} after {tokens} of {most} tokens")
        return f"answered: {reason}"


@contextmanager
def server(log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server's address and process."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        command = [sys.executable, "-m", "specdebug", "serve", *FLAGS]
        process = subprocess.Popen(command, stdout=file, stderr=file, env=env)
    try:
        while not (line := _ready(log)):
            if process.poll() is not None:
                raise SystemExit(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield line.split()[-1], process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _ready(log: Path) -> str | None:
    return next((line for line in log.read_text().splitlines() if "ready to roll" in line), None)


def _memory(pid: int) -> int:
    """Bytes of memory that are a process's own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private"))


def _files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


async def _look(http: httpx.AsyncClient, front: int, engine: int, began: float) -> Sample:
    info = (await http.get("/server_info")).json()["internal_states"][0]
    return Sample(
        round(time.monotonic() - began, 1),
        _memory(front),
        _memory(engine),
        _files(front),
        _files(engine),
        _threads(front),
        info["num_running_reqs"] + info["num_queue_reqs"],
    )


async def load(url: str, front: int, *, clients: int, seconds: float, seed: int) -> Outcome:
    """Have the crowd at a server, and look at what is left."""
    outcome = Outcome(clients)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=120) as apart:
        engine = int((await apart.get("/server_info")).json()["specdebug"]["engine"]["pid"])
        before = await _look(apart, front, engine, time.monotonic())
        began = time.monotonic()
        # The client keeps some connections of requests that were cancelled until it is closed itself.
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
            crowd = Crowd(http, outcome, seed, began + seconds)
            everybody = asyncio.gather(*(crowd.client(number) for number in range(clients)))
            while not everybody.done():
                outcome.samples.append(await _look(apart, front, engine, began))
                await asyncio.wait([everybody], timeout=SAMPLE_S)
            await everybody
            outcome.seconds = time.monotonic() - began
        outcome.problems += await _left(apart, front, engine, before)
        outcome.problems += list(_grown(outcome.samples))
    return outcome


async def _left(http: httpx.AsyncClient, front: int, engine: int, before: Sample) -> list[str]:
    """Tell what is left of the crowd, once the server had time to notice that it is gone."""
    until = time.monotonic() + IDLE_S
    while (now := await _look(http, front, engine, until)).open or now.front_files > before.front_files:
        if time.monotonic() > until:
            break
        await asyncio.sleep(0.2)
    problems = []
    if now.open:
        problems.append(f"{now.open} requests are open though nobody waits for them")
    for name in ("front_files", "engine_files"):
        if getattr(now, name) > getattr(before, name):
            problems.append(f"{name}: {getattr(before, name)} before, {getattr(now, name)} after")
    if (status := (await http.post("/flush_cache")).status_code) != 200:
        problems.append(f"/flush_cache is answered with {status}")
    info = (await http.get("/server_info")).json()
    if used := info["internal_states"][0]["used_tokens"]:
        problems.append(f"{used} slots are held")
    problems += [f"found {each['signature']}: {each['detail']}" for each in info["specdebug"]["violations"]]
    answer = await http.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 3}})
    if answer.status_code != 200:
        problems.append(f"a last request is answered with {answer.status_code}")
    return problems


def _grown(samples: list[Sample]) -> Iterator[str]:
    third = len(samples) // 3
    if not third:
        return
    for name in ("front_bytes", "engine_bytes", "front_threads"):
        middle, last = (
            statistics.median(getattr(each, name) for each in part)
            for part in (samples[third : 2 * third], samples[2 * third :])
        )
        room = GROWTH_BYTES if name.endswith("bytes") else 0
        if last > middle * GROWTH + room:
            yield f"{name} grew from {middle:,.0f} to {last:,.0f}"


def show(outcome: Outcome, console: Console) -> None:
    """Print what was seen."""
    table = Table("ended", "requests", title=f"{outcome.clients} clients, {outcome.seconds:.0f} s")
    for end, count in sorted(outcome.ends.items()):
        table.add_row(end, f"{count:,}")
    table.add_row("all", f"{outcome.ends.total():,} of {outcome.acts.total():,} begun")
    console.print(table)
    table = Table("at", "front MiB", "engine MiB", "front fds", "engine fds", "threads", "open")
    for each in outcome.samples[:: max(len(outcome.samples) // 8, 1)]:
        sizes = (f"{size / 2**20:.0f}" for size in (each.front_bytes, each.engine_bytes))
        counts = (each.front_files, each.engine_files, each.front_threads, each.open)
        table.add_row(f"{each.at_s:.0f} s", *sizes, *map(str, counts))
    console.print(table)
    for problem in outcome.problems[:40]:
        console.print(f"WRONG {problem}", markup=False)
    console.print(f"{len(outcome.problems)} problems")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()) / "serve-load.log")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with server(given.log) as (url, process):
        seconds = given.minutes * 60
        outcome = asyncio.run(load(url, process.pid, clients=given.clients, seconds=seconds, seed=given.seed))
    log = given.log.read_text("utf-8", "replace")
    if "Traceback" in log:
        outcome.problems.append(f"a traceback is in {given.log}")
    if outcome.ends.total() + outcome.failed < outcome.acts.total():
        outcome.problems.append("some requests never ended")
    show(outcome, Console())
    if given.json is not None:
        given.json.write_text(json.dumps(outcome.to_dict()))
    sys.exit(bool(outcome.problems))


if __name__ == "__main__":
    main()

"""Measure what HTTP costs: ``specdebug serve`` and the engine alone serve the same requests, in turns.

Two numbers. Tokens a second while 32 clients each have a request open at all times, as a part of what the engine gives
alone (the promise is at least 0.9). And how much later the first byte comes, of one request at a time on an idle engine
(the promise is at most 5 ms at the median, on a CPU). The rounds alternate, so that a slower machine slows both; each
begins with an empty cache.

Where others use the machine, too, processor time tells more: that of the engine alone, of the engine that serves, and
of the front, over all rounds of the crowd.

Run alone, ``python benchmarks/serve.py`` prints the table; ``--stream`` has clients read streams. The clients share the
machine with the server: on two cores they take a part of one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from specdebug.base.engine_flags import arguments_of
from specdebug.base.trial import stream
from specdebug.engine import Engine, EngineConfig, SamplingParams

CLIENTS = 32
REQUESTS = 96
OUTPUT = 48
PROMPT = 64
FIRST_BYTES = 40
LEAST_SHARE, MOST_LATER_MS = 0.9, 5.0
OPTIONS = {
    "model": "tiny",
    "max_running_requests": CLIENTS,
    "cuda_graph": {"max_bs": CLIENTS},
    "speculative": {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
}


@dataclass(frozen=True)
class Round:
    """One round: tokens a second, seconds to the first byte of each request alone, and the processor time that the
    crowd took of each process."""

    tokens_per_s: float
    first_s: list[float]
    processor_s: list[float]


def processor_s(pid: int) -> float:
    """The processor time that a process has taken; Linux alone tells."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prompts(count: int, round_number: int) -> list[list[int]]:
    """Prompts of a round, no two with a common prefix."""
    draw = stream(0, "serve", round_number)
    return [[draw.randrange(1, 2048) for _ in range(PROMPT)] for _ in range(count)]


class Alone:
    """The engine in this process."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._engine = Engine(EngineConfig.from_dict(OPTIONS))
        self._number = 0

    def run(self, crowd: Sequence[list[int]], single: Sequence[list[int]]) -> Round:
        """Serve the crowd, then each of the others by itself."""
        self._engine.flush_cache()
        waiting, tokens, began, taken = list(crowd[::-1]), 0, time.perf_counter(), time.process_time()
        open_now = 0
        while waiting or open_now:
            while waiting and open_now < CLIENTS:
                self._add(waiting.pop(), OUTPUT)
                open_now += 1
            report = self._engine.step()
            tokens += sum(map(len, report.emitted.values()))
            open_now -= len(report.finished)
            self._engine.forget_finished()
        seconds, taken = time.perf_counter() - began, time.process_time() - taken
        return Round(tokens / seconds, [self._first(ids) for ids in single], [taken])

    def _first(self, ids: list[int]) -> float:
        began = time.perf_counter()
        self._add(ids, 4)
        while not self._engine.step().emitted:
            pass
        took = time.perf_counter() - began
        while self._engine.has_work:
            self._engine.step()
        return took

    def _add(self, ids: list[int], tokens: int) -> None:
        self._number += 1
        self._engine.add_request(str(self._number), ids, SamplingParams(max_new_tokens=tokens))


class Served:
    """Clients of a server."""

    def __init__(self, port: int, front: int, *, streams: bool) -> None:
        self._port, self._front, self._streams = port, front, streams

    def run(self, crowd: Sequence[list[int]], single: Sequence[list[int]]) -> Round:
        """Have the crowd served to as many clients as there are, then each of the others by itself."""
        return asyncio.run(self._run(crowd, single))

    async def _run(self, crowd: Sequence[list[int]], single: Sequence[list[int]]) -> Round:
        await self._ask("/flush_cache", {})
        waiting = list(crowd[::-1])

        async def client() -> int:
            tokens = 0
            while waiting:
                _, answer = await self._ask("/generate", body(waiting.pop(), OUTPUT, streams=self._streams))
                tokens += answer["meta_info"]["completion_tokens"]
            return tokens

        _, info = await self._ask("/server_info", None)
        pids = info["specdebug"]["engine"]["pid"], self._front
        before, began = [processor_s(pid) for pid in pids], time.perf_counter()
        tokens = sum(await asyncio.gather(*(client() for _ in range(CLIENTS))))
        seconds = time.perf_counter() - began
        taken = [processor_s(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]
        firsts = [(await self._ask("/generate", body(ids, 4, streams=True)))[0] for ids in single]
        return Round(tokens / seconds, firsts, taken)

    async def _ask(self, path: str, document: object) -> tuple[float, dict[str, Any]]:
        """Seconds to the first byte of the answer's body, and the last document of it."""
        data = b"" if document is None else json.dumps(document).encode()
        method = "GET" if document is None else "POST"
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        began = time.perf_counter()
        writer.write(head.encode() + data)
        status, *_ = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        assert b" 200 " in status, status
        first = await reader.read(1 << 16)
        took = time.perf_counter() - began
        lines = [line for line in (first + await reader.read()).split(b"\n") if line.startswith((b"{", b"data: {"))]
        writer.close()
        return took, json.loads(lines[-1].removeprefix(b"data: ")) if lines else {}


def body(ids: list[int], tokens: int, *, streams: bool) -> dict[str, object]:
    """A greedy request."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": ids, "sampling_params": sampling, "stream": streams}


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """The port of a server of these options, and the number of its process."""
    command = [sys.executable, "-m", "specdebug", "serve", "--port", "0", "--log-level", "error"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, *arguments_of(OPTIONS)], stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    try:
        line = next((line for line in process.stderr if "ready to roll" in line), "")
        assert line, "the server did not start"
        yield int(line.rstrip().rpartition(":")[2]), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def measure(rounds: int, *, streams: bool) -> list[tuple[Round, Round]]:
    """Rounds of the engine alone and of the server, each pair on the same requests; a first one is thrown away."""
    alone, pairs = Alone(), []
    with server() as (port, front):
        served = Served(port, front, streams=streams)
        for number in range(rounds + 1):
            crowd, single = prompts(REQUESTS, 2 * number), prompts(FIRST_BYTES, 2 * number + 1)
            runs = [alone.run, served.run][:: 1 if number % 2 else -1]
            found = {run: run(crowd, single) for run in runs}
            pairs.append((found[alone.run], found[served.run]))
    return pairs[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stream", action="store_true")
    arguments = parser.parse_args()
    pairs = measure(arguments.rounds, streams=arguments.stream)
    heads = ("round", "alone tok/s", "served tok/s", "share", "alone ms", "served ms", "later ms")
    print("".join(f"{head:>14}" for head in heads))
    for number, (one, other) in enumerate(pairs, start=1):
        early, late = (statistics.median(each.first_s) * 1e3 for each in (one, other))
        row = (one.tokens_per_s, other.tokens_per_s, other.tokens_per_s / one.tokens_per_s, early, late, late - early)
        print(f"{number:>14}" + "".join(f"{value:>14.3f}" for value in row))
    share = statistics.median(other.tokens_per_s / one.tokens_per_s for one, other in pairs)
    later = statistics.median(
        (late - early) * 1e3 for one, other in pairs for early, late in zip(one.first_s, other.first_s, strict=True)
    )
    (alone,), (engine, front) = (
        [sum(times) for times in zip(*(each.processor_s for each in side), strict=True)]
        for side in zip(*pairs, strict=True)
    )
    print(f"processor time: alone {alone:.1f} s; served {engine:.1f} s, and the front {front:.1f} s")
    print(f"share of the engine's tokens a second, median: {share:.3f} (at least {LEAST_SHARE})")
    print(f"the first byte comes later, median: {later:.2f} ms (at most {MOST_LATER_MS:g})")


if __name__ == "__main__":
    main()

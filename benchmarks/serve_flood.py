"""Floods of one server, a kind at a time, while another client asks for a few tokens every half second.

    python benchmarks/serve_flood.py --seconds 120 --json floods.json

Every kind is a crowd of connections of this machine alone, opened again as they are cut, for so many seconds and no
longer. Of the other client the slowest answer and what was refused are told, of the server's front the greatest
resident memory against that before the first flood. Ends with 1 where an answer took more than 2 s, failed, or memory
passed 1.5 times its rest. Each run has a server of its own on a free port, so several, of a ``--kind`` each, can run at
once where there are processors for them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

KEY = "flooded"
FLAGS = (
    "--model-path", "tiny", "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4", "--port", "0", "--api-key", KEY,
    "--enable-metrics", "--log-requests",
)  # fmt: skip
MOST_S, MOST_MEMORY = 2.0, 1.5
EVERY_S = 0.5
ASK = {"text": "def main():", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
AUTHORITY = b"Host: 127.0.0.1\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n"


def post(path: str, body: bytes) -> bytes:
    """A whole request."""
    return b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n" % (path.encode(), AUTHORITY, len(body)) + body


def get(path: str, *, keyed: bool = True) -> bytes:
    head = AUTHORITY if keyed else b"Host: 127.0.0.1\r\n"
    return b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), head)


def stream(tokens: int, **more: object) -> bytes:
    params = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return post("/generate", json.dumps({"text": "x", "stream": True, "sampling_params": params, **more}).encode())


@dataclass(frozen=True)
class Kind:
    """One kind of flood: ``clients`` connections, each of which sends ``first`` and then, if there is any, ``drip``
    byte by byte; those that ``reads`` take the answers and ask again at once."""

    clients: int
    first: bytes
    drip: bytes = b""
    reads: bool = False


IDS = post("/generate", b'{"input_ids": [' + b"1," * (2 << 20) + b"1]}")
LISTS = post("/generate", b'{"input_ids": [' + b"[]," * (1 << 20) + b"1]}")
KINDS: dict[str, Kind] = {
    "unread streams": Kind(6, stream(1900)),
    "many unread streams": Kind(64, stream(1900)),
    "unread streams with log probabilities": Kind(6, stream(300, return_logprob=True, top_logprobs_num=20)),
    "health_generate without key": Kind(64, get("/health_generate", keyed=False), reads=True),
    "health_generate": Kind(64, get("/health_generate"), reads=True),
    "server_info": Kind(16, get("/server_info"), reads=True),
    "4 MiB of input_ids": Kind(8, IDS, reads=True),
    "3 MiB of empty lists": Kind(8, LISTS, reads=True),
    "16 MiB, told": Kind(8, b"POST /generate HTTP/1.1\r\n%sContent-Length: 16777216\r\n\r\n" % AUTHORITY, reads=True),
    "half a head": Kind(600, b"POST /generate HTTP/1.1\r\n", b"X-Long: " + b"x" * 200),
    "half a body": Kind(64, b"POST /generate HTTP/1.1\r\n%sContent-Length: 9999\r\n\r\n" % AUTHORITY, b"x" * 200),
    "half a large body": Kind(16, IDS[: 2 << 20], b"1," * 100),
    "silent connections": Kind(1000, b""),
    "batches": Kind(4, post("/generate", json.dumps({**ASK, "text": ["x"] * 128}).encode()), reads=True),
    "long stops": Kind(4, stream(1900, sampling_params={"max_new_tokens": 500, "stop": ["x" * 999] * 64}), reads=True),
    "deep nesting": Kind(16, post("/generate", b"[" * 100_000), reads=True),
    "control characters": Kind(16, post("/generate", json.dumps({**ASK, "rid": "\x1b]0;x\x07"}).encode()), reads=True),
}  # fmt: skip


@contextlib.contextmanager
def server(log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server's address and process."""
    with log.open("wb") as file:
        command = [sys.executable, "-m", "specdebug", "serve", *FLAGS]
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        while not (
            ready := [line for line in log.read_text("utf-8", "replace").splitlines() if "ready to roll" in line]
        ):
            if process.poll() is not None:
                raise SystemExit(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield ready[0].split()[-1], process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    words = Path(f"/proc/{pid}/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


async def flood(host: str, port: int, kind: Kind, until: float) -> int:
    """Have a kind's clients at a server; return how often they connected."""
    times = 0

    async def client() -> None:
        nonlocal times
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port, limit=1 << 14)
                times += 1
                try:
                    await _play(kind, reader, writer, until)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.01)

    clients = [asyncio.create_task(client()) for _ in range(kind.clients)]
    await asyncio.wait(clients, timeout=max(until - time.monotonic(), 0) + 1)
    for each in clients:
        each.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return times


async def _play(kind: Kind, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, until: float) -> None:
    async with asyncio.timeout(max(until - time.monotonic(), 0.1)):
        with contextlib.suppress(TimeoutError):
            while not writer.transport.is_closing():
                writer.write(kind.first)
                await writer.drain()
                for at in range(len(kind.drip)):
                    writer.write(kind.drip[at : at + 1])
                    await asyncio.sleep(0.2)
                    if writer.transport.is_closing():
                        return
                if kind.reads:
                    await _read(reader)
                    await asyncio.sleep(0)
                else:
                    reader._transport.pause_reading()  # type: ignore[attr-defined]
                    await _gone(writer)


async def _read(reader: asyncio.StreamReader) -> None:
    """Read until an answer is over, as far as a flood cares: nothing more comes for a moment, or its end."""
    if not await reader.read(1 << 14):
        raise ConnectionResetError
    with contextlib.suppress(TimeoutError):
        while await asyncio.wait_for(reader.read(1 << 14), 0.05):
            pass


async def _gone(writer: asyncio.StreamWriter) -> None:
    """Wait until the other side has cut the connection. While nothing is read, only writing shows it."""
    while not writer.transport.is_closing():
        await asyncio.sleep(1)
        writer.write(b"\r\n")


@dataclass
class Seen:
    """The other client's answers: seconds of each, and those that were none."""

    seconds: list[float]
    failed: list[str]


async def ask(http: httpx.AsyncClient, until: float) -> Seen:
    """Ask for a few tokens again and again."""
    seen = Seen([], [])
    while (began := time.monotonic()) < until:
        try:
            answer = await http.post("/generate", json=ASK)
            if answer.status_code != 200:
                seen.failed.append(f"{answer.status_code}: {answer.text[:100]}")
        except httpx.HTTPError as error:
            seen.failed.append(type(error).__name__)
        seen.seconds.append(time.monotonic() - began)
        await asyncio.sleep(EVERY_S)
    return seen


@contextlib.asynccontextmanager
async def memory_of(pid: int) -> AsyncIterator[Callable[[], int]]:
    """The greatest resident memory of a process meanwhile, in bytes."""
    most = resident(pid)

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, resident(pid))
            await asyncio.sleep(0.02)

    task = asyncio.create_task(watch())
    try:
        yield lambda: most
    finally:
        task.cancel()


async def idle(http: httpx.AsyncClient) -> None:
    """Wait until a server has nothing to do, for a minute at most."""
    for _ in range(600):
        with contextlib.suppress(httpx.HTTPError):
            state = (await http.get("/server_info")).json()["internal_states"][0]
            if not state["num_running_reqs"] + state["num_queue_reqs"]:
                return
        await asyncio.sleep(0.1)


def flood_in_process(url: str, name: str, seconds: float) -> Awaitable[asyncio.subprocess.Process]:
    """A flood in a process of its own, whose work is not in the other client's way."""
    return asyncio.create_subprocess_exec(
        sys.executable, __file__, "--flood", name, "--url", url, "--seconds", f"{seconds}"
    )


@dataclass(frozen=True)
class Row:
    """One kind of flood: seconds of the slowest answer, answers and failures of the other client, bytes of the front
    at rest and at most."""

    flood: str
    slowest_s: float
    asked: int
    failed: list[str]
    rest: int
    most: int

    @property
    def held(self) -> bool:
        return self.slowest_s <= MOST_S and self.most <= MOST_MEMORY * self.rest and not self.failed


async def measure(url: str, pid: int, name: str, seconds: float, rest: int) -> Row:
    """Play one kind."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        await idle(http)
        await ask(http, time.monotonic() + 0.1)
        async with memory_of(pid) as most:
            flooding = await flood_in_process(url, name, seconds)
            seen = await ask(http, time.monotonic() + seconds)
            await flooding.wait()
        return Row(name, max(seen.seconds), len(seen.seconds), seen.failed, rest, most())


def as_table(rows: Iterable[Row]) -> Table:
    table = Table("flood", "slowest answer", "asked", "failed", "rest", "memory", "held")
    for row in rows:
        failed = f"{len(row.failed)} ({row.failed[0]})" if row.failed else "0"
        memory = f"{row.rest / 2**20:.0f} MiB", f"{row.most / row.rest:.2f}"
        table.add_row(row.flood, f"{row.slowest_s:.2f} s", f"{row.asked}", failed, *memory, "yes" if row.held else "NO")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="of each kind")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="only this one (repeatable)")
    parser.add_argument("--json", type=Path, help="write the table here, too")
    parser.add_argument("--log", type=Path, help="where the server's log goes; a temporary file unless given")
    parser.add_argument("--flood", choices=sorted(KINDS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.flood:
        host, port = given.url.removeprefix("http://").split(":")
        asyncio.run(flood(host, int(port), KINDS[given.flood], time.monotonic() + given.seconds))
        return
    log = given.log or Path(tempfile.mkstemp(prefix="serve-flood-", suffix=".log")[1])
    with server(log) as (url, process):
        httpx.post(f"{url}/generate", json=ASK, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
        rest, names = resident(process.pid), given.kind or list(KINDS)
        rows = [asyncio.run(measure(url, process.pid, name, given.seconds, rest)) for name in names]
    Console(width=140).print(as_table(rows))
    if given.json is not None:
        given.json.write_text(json.dumps([{**asdict(row), "held": row.held} for row in rows], indent=2) + "\n")
    if traced := "Traceback" in log.read_text("utf-8", "replace"):
        print(f"a traceback is in {log}")
    sys.exit(traced or not all(row.held for row in rows))


if __name__ == "__main__":
    main()

"""Servers whose engine dies: every open request gets an error soon, the cause is named, and nothing is left.

``python benchmarks/serve_crash.py [--times 20] [--seed 0] [--json FILE]`` starts a server, opens requests, and after a
random moment has its engine killed, stopped, or fail an assertion, each so many times. Each time it is checked that

- every open request ends with an error (a plain one with status 500, a stream by an error event) within 2 s of the
  death; of a hang, within 2 s of the watchdog's limit;
- the error and the log name the same signature, which is that of the cause;
- ``/health`` answers 503 from then on, and a new request is refused;
- after SIGTERM no process of the server is left, and its port can be bound again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from rich.console import Console
from rich.table import Table

FLAGS = (
    "--model-path", "tiny", "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4", "--port", "0",
)  # fmt: skip
WATCHDOG_S = 1.0
SOON_S = 2.0
OPEN = 6
BODY = {"text": "def f(x):\n", "sampling_params": {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}}
FAULT = ("--probes", "default", "--mode", "assert")


@dataclass
class Death:
    """One server's. ``after_s``: the longest that an open request waited for its error."""

    cause: str
    signature: str = ""
    after_s: float = 0.0
    problems: list[str] = field(default_factory=list)


async def die(cause: str, draw: random.Random) -> Death:
    """Serve, let the engine end by ``cause``, and look at what comes of it."""
    death = Death(cause)
    flags = list(FLAGS)
    if cause == "hang":
        flags += ["--watchdog-timeout", str(WATCHDOG_S)]
    if cause == "assertion":
        flags += [*FAULT, "--fault", f"nan_logits:step={draw.randrange(2, 200)}"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as file:
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "specdebug", "serve", *flags]
            process = subprocess.Popen(command, stdout=file, stderr=file, env=env)
        try:
            url = await _up(process, log)
            async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                await _watch(http, death, draw, log)
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait()
        _nothing_left(death, url, process.pid, status)
    return death


async def _up(process: subprocess.Popen[bytes], log: Path) -> str:
    while True:
        text = log.read_text("utf-8", "replace")
        for line in text.splitlines():
            if "ready to roll" in line:
                return line.split()[-1]
        if process.poll() is not None:
            raise SystemExit(f"the server did not start:\n{text}")
        await asyncio.sleep(0.05)


async def _watch(http: httpx.AsyncClient, death: Death, draw: random.Random, log: Path) -> None:
    engine = int((await http.get("/server_info")).json()["specdebug"]["engine"]["pid"])
    asked = [asyncio.create_task(_plain(http) if n % 2 else _stream(http)) for n in range(OPEN)]
    died = None
    if death.cause != "assertion":
        await asyncio.sleep(draw.random() * 1.5)
        os.kill(engine, signal.SIGKILL if death.cause == "kill -9" else signal.SIGSTOP)
        died = time.monotonic() + (WATCHDOG_S if death.cause == "hang" else 0.0)
    answers = await asyncio.gather(*asked)
    if died is None:
        died = min(when for when, _ in answers)
    death.after_s = max(when for when, _ in answers) - died
    if death.after_s > SOON_S:
        death.problems.append(f"an open request ended {death.after_s:.2f} s after the death")
    told = {_signature(error) for _, error in answers}
    if len(told) != 1:
        death.problems.append(f"requests were told {sorted(told)}")
    death.signature = min(told)
    right = {"kill -9": "crash:SIGKILL", "hang": "hang", "assertion": "nan@"}[death.cause]
    if not death.signature.startswith(right):
        death.problems.append(f"the signature is {death.signature}, expected {right}")
    if f"fail {death.signature}" not in log.read_text("utf-8", "replace"):
        death.problems.append("the log does not name the signature")
    if (status := (await http.get("/health")).status_code) != 503:
        death.problems.append(f"/health is answered with {status}")
    if (status := (await http.post("/generate", json=BODY)).status_code) != 503:
        death.problems.append(f"a new request is answered with {status}")
    if _is_there(engine):
        death.problems.append("the engine's process is left")


async def _plain(http: httpx.AsyncClient) -> tuple[float, str]:
    response = await http.post("/generate", json=BODY)
    error = response.json().get("error", {}).get("message", "") if response.status_code == 500 else ""
    return time.monotonic(), error or f"status {response.status_code}"


async def _stream(http: httpx.AsyncClient) -> tuple[float, str]:
    events: list[Any] = []
    async with http.stream("POST", "/generate", json={**BODY, "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line[6:]))
    return time.monotonic(), events[-1].get("error", {}).get("message", "a stream without an error")


def _signature(error: str) -> str:
    found = re.search(r"fail ([^\s:]+(?::SIG[A-Z]+)?)", error)
    return found[1] if found else error


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _nothing_left(death: Death, url: str, pid: int, status: int) -> None:
    if status != 128 + signal.SIGTERM:
        death.problems.append(f"the server ended with {status}")
    port = urlsplit(url).port
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", port))
        except OSError:
            death.problems.append(f"port {port} is not free")
    if _is_there(pid):
        death.problems.append("the server's process is left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    draw, deaths = random.Random(given.seed), list[Death]()
    for cause in ("kill -9", "hang", "assertion"):
        for _ in range(given.times):
            deaths.append(asyncio.run(die(cause, draw)))
            for problem in deaths[-1].problems:
                print(f"WRONG {cause}: {problem}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(each) for each in deaths]))
    table = Table("cause", "times", "as they should", "signatures", "error after, median", "at most")
    for cause in ("kill -9", "hang", "assertion"):
        those = [each for each in deaths if each.cause == cause]
        waits = [each.after_s for each in those]
        sound = sum(not each.problems for each in those)
        names = ", ".join(sorted({each.signature for each in those}))
        late = (f"{statistics.median(waits):.2f} s", f"{max(waits):.2f} s")
        table.add_row(cause, str(len(those)), str(sound), names, *late)
    Console().print(table)
    sys.exit(any(each.problems for each in deaths))


if __name__ == "__main__":
    main()

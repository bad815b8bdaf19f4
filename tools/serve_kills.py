"""End engines of ``specdebug serve`` at random moments, and hold the front to what it promises then.

    python tools/serve_kills.py [--times 20] [--kind killed]

In each round a server has four requests open, two of them streams, when its engine is killed (``SIGKILL``), stopped
(``SIGSTOP``, seen by the watchdog) or fails an assertion (a probe, after a fault at a random step). Every open request
must end with an error that names the signature, within two seconds (a stopped engine's, two seconds after the
watchdog's time); ``/health`` must say 503; and once the server was told to end, no process of its engine's number may
be left and its port must be free. A line for each kind: rounds, and the longest that a request took to end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

WATCHDOG_S = 1.0
LIMIT_S = 2.0
PATIENCE_S = 120.0
FLAGS = (
    "--model-path", "tiny", "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4", "--log-level", "error",
    "--watchdog-timeout", str(WATCHDOG_S),
)  # fmt: skip
BODY = {"text": "def f(x):\n", "sampling_params": {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}}


@dataclass(frozen=True)
class Kind:
    """One way to end: what is sent to the engine (0: nothing, its own fault does it), and the signature."""

    name: str
    number: int
    signature: str
    allowed_s: float = LIMIT_S


KINDS = (
    Kind("killed", signal.SIGKILL, "crash:SIGKILL"),
    Kind("stopped", signal.SIGSTOP, "hang", LIMIT_S + WATCHDOG_S),
    Kind("asserted", 0, "nan@verify.logits"),
)


@dataclass
class Open:
    """A request that is open; ``ended`` is when it was told of its end, ``told`` what it was told."""

    http: httpx.Client
    stream: bool
    tokens: int = 0
    ended: float = 0.0
    told: str = ""
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        if self.stream:
            with self.http.stream("POST", "/generate", json={**BODY, "stream": True}) as response:
                for line in response.iter_lines():
                    self._hear(line)
        else:
            self.told = self.http.post("/generate", json=BODY).text
            self.ended = time.monotonic()

    def _hear(self, line: str) -> None:
        text = line.removeprefix("data: ")  # without: it had not begun
        document = json.loads(text) if text.startswith("{") else {}
        if "error" in document:
            self.told, self.ended = line, time.monotonic()
        elif document:
            self.tokens = document["meta_info"]["completion_tokens"]


@contextmanager
def server(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that serves, and its address."""
    command = [sys.executable, "-m", "specdebug", "serve", "--port", "0", *FLAGS, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stderr is not None
    try:
        line = next((line for line in process.stderr if "ready to roll" in line), "")
        assert line, "the server did not start"
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, line.split()[-1]
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def wait_for(holds: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, f"waited in vain: {what}"
        time.sleep(0.005)


def play(kind: Kind, draw: random.Random) -> float:
    """One round; seconds until the last open request had ended. Raises AssertionError for a broken promise."""
    moment = draw.randrange(2, 60)
    fault = f"nan_logits:step={moment}..{moment + 50}"  # at the first of them that verifies
    flags = () if kind.number else ("--fault", fault, "--probes", "default", "--mode", "assert")
    with server(*flags) as (process, url), httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
        engine = http.get("/server_info").json()["specdebug"]["engine"]["pid"]
        requests = [Open(http, stream) for stream in (True, True, False, False)]
        began = 0.0
        if kind.number:
            wait_for(lambda: requests[0].tokens >= moment, "tokens have come")
            began = time.monotonic()
            os.kill(engine, kind.number)
        for each in requests:
            each.thread.join(PATIENCE_S)
            found = re.search(r"fail (\S+): ", each.told)
            assert found is not None, each.told
            assert found[1] == kind.signature, each.told
        ends = [each.ended for each in requests]
        took = max(ends) - (began or min(ends))
        assert http.get("/health").status_code == 503
    assert took <= kind.allowed_s, f"a request ended {took:.2f} s after its engine"
    assert process.returncode == 128 + signal.SIGTERM
    assert not os.path.exists(f"/proc/{engine}"), "the engine is left"
    with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))):
        return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=[kind.name for kind in KINDS], action="append", help="these alone")
    arguments = parser.parse_args()
    print(f"{'engine':<10}{'rounds':>7}{'longest s':>11}   (allowed)")
    for kind in (each for each in KINDS if each.name in (arguments.kind or [each.name])):
        draw = random.Random(f"{arguments.seed}/{kind.name}")
        longest = max(play(kind, draw) for _ in range(arguments.times))
        print(f"{kind.name:<10}{arguments.times:>7}{longest:>11.2f}   ({kind.allowed_s:g})", flush=True)


if __name__ == "__main__":
    main()

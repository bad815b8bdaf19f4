"""A server in this process: the front in one thread, the engine in another, HTTP between it and the test.

Everything but the second process is real. ``launched`` starts ``specdebug serve`` as a user does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import httpx

from specdebug.apps.serve.app import make_app
from specdebug.apps.serve.client import EngineClient
from specdebug.apps.serve.connections import ConnectionLimits
from specdebug.apps.serve.engine_loop import serve
from specdebug.apps.serve.info import ServerMetrics
from specdebug.apps.serve.process import Launch
from specdebug.apps.serve.run import Address, front, listen
from specdebug.apps.serve.state import ServerState, Settings
from specdebug.apps.serve.text import ChatTemplate, ModelText
from specdebug.engine.config import EngineConfig
from specdebug.workers.job import WorkerEnd
from specdebug.workers.wire import PipeSink

PATIENCE_S = 60.0
LIMITS = ConnectionLimits()
EAGLE: Mapping[str, Any] = {
    "model": "tiny",
    "max_running_requests": 4,
    "speculative": {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
}


def wait_until(holds: Callable[[], Any], what: str) -> Any:
    """The first true value of ``holds``. Fails when there is none in a minute."""
    until = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < until, f"waited in vain: {what}"
        time.sleep(0.01)
    return found


class EngineThread:
    """An engine in a thread, in the place of an :class:`EngineProcess`."""

    pid = os.getpid()

    def __init__(self, launch: Launch) -> None:
        self.channel, theirs = socket.socketpair()
        read, self._write = os.pipe()
        self.log: IO[bytes] = os.fdopen(read, "rb", buffering=0)
        self._thread = threading.Thread(target=self._run, args=(launch, theirs), daemon=True)
        self._thread.start()

    def _run(self, launch: Launch, theirs: socket.socket) -> None:
        with theirs, contextlib.suppress(OSError):
            serve(launch, theirs, PipeSink(theirs.fileno()))

    def take_log(self, data: bytes) -> None: ...

    def dump(self) -> None: ...

    def give_up(self) -> None: ...

    def gone(self) -> None:
        self._thread.join()
        os.close(self._write)

    def worker_end(self) -> WorkerEnd:
        return WorkerEnd("exit", 0, 0.0, 0.0, "")


class Serving:
    """A server of these engine options and settings, while its context lasts."""

    def __init__(self, options: Mapping[str, Any] = EAGLE, limits: ConnectionLimits = LIMITS, **settings: Any) -> None:
        self._limits = limits
        self.launch = Launch(dict(options))
        self._settings = Settings(served_model_name="tiny", **settings)
        self.said: list[str] = []
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def __enter__(self) -> Serving:
        self._thread.start()
        assert self._up.wait(PATIENCE_S), self.said
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        config = EngineConfig.from_dict(self.launch.options)
        start: Any = EngineThread
        self.client = EngineClient(
            self.launch,
            watchdog_s=300,
            most_running=config.max_running_requests,
            say=self.said.append,
            pass_on=lambda data: None,
            start=start,
        )
        metrics = ServerMetrics(self.client, "tiny", config.usable_slots)
        self.state = ServerState(
            self.client, config, ModelText("tiny"), ChatTemplate("tiny"), self._settings, self.said.append
        )
        bound = listen(Address("127.0.0.1", 0, 300), keyed=False)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        app = make_app(self.state, metrics)
        self._server = front(app, self._limits, "error")
        await self.client.start()
        await self.client.settled.wait()
        self._up.set()
        await self._server.serve(sockets=[bound])
        await self.client.close()

    def generate(self, **body: Any) -> dict[str, Any]:
        """The answer of ``/generate``."""
        response = self.http.post("/generate", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    @contextlib.contextmanager
    def under_way(self, **body: Any) -> Iterator[None]:
        """A stream that has begun, until the context ends; then its client goes away."""
        with self.http.stream("POST", "/generate", json={**body, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            yield
            del lines  # until here, for whoever drops them closes the connection

    def refused(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error with which a body ends."""
        response = self.http.post(path, json=body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        assert error["code"] == status
        return error

    def idle(self) -> bool:
        """Nothing is open, nothing runs or waits, no slot is held."""
        totals = self.client.totals
        return not (self.client.open or totals.running or self.client.waiting or totals.used)


def events_of(response: httpx.Response) -> Iterator[Any]:
    """The documents of a stream, and ``[DONE]`` as a string."""
    for line in response.iter_lines():
        if line:
            assert line.startswith("data: "), line
            yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])


class Launched:
    """``specdebug serve`` as a process, with its log in a file."""

    def __init__(self, log: Path, *flags: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "specdebug", "serve", "--port", "0", *flags]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stderr=file, stdout=file, env=env)

    def __enter__(self) -> Launched:
        line = wait_until(lambda: self._ended() or self._ready(), "the server is up")
        assert self.process.poll() is None, self.text
        self.url = line.split()[-1]
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        self.engine_pid = int(self.http.get("/server_info").json()["specdebug"]["engine"]["pid"])
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()

    @property
    def text(self) -> str:
        """The log so far."""
        return self.log.read_text("utf-8", "replace")

    def _ended(self) -> bool:
        return self.process.poll() is not None

    def _ready(self) -> str | None:
        return next((line for line in self.text.splitlines() if "ready to roll" in line), None)

    def engine_is_gone(self) -> bool:
        """No process of the engine's number is left, not even a zombie."""
        try:
            os.kill(self.engine_pid, 0)
        except ProcessLookupError:
            return True
        return False

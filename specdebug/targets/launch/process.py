"""A server's process: its command, started as the leader of a group, followed by its log, ended with all its group."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdebug.base.engine_flags import arguments_of
from specdebug.base.errors import SpecDebugError, one_line
from specdebug.base.interpreters import own_python
from specdebug.logs.scan import name_of, tells_of_damage
from specdebug.targets.base import OverThere
from specdebug.targets.launch.log import LogRoom, ServerLog
from specdebug.targets.requests import NoServer
from specdebug.targets.settings import SERVE, LaunchedServer
from specdebug.workers.child import Child

REVERTS = "SGLANG_DEBUG_REVERT_PR"
"""The variable that tells an engine which fixes to leave out."""
_SERVE = "from specdebug.__main__ import main; main()"


@dataclass(frozen=True)
class StartCommand:
    """How a server is started. ``{port}`` in a word stands for its port, which is free only when it is looked for."""

    words: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def key(self) -> str:
        """Equal for commands that start the same server."""
        return repr((self.words, sorted(self.env.items())))

    def on(self, port: int) -> list[str]:
        """The words for a port."""
        return [word.replace("{port}", str(port)) for word in self.words]


def command_of(settings: LaunchedServer, options: Mapping[str, Any], seed: int, there: OverThere) -> StartCommand:
    """The command for an arm. Raises SpecDebugError for one that cannot be."""
    env = {name: value for name, value in os.environ.items() if name != REVERTS} | dict(settings.variables)
    numbers = ",".join(map(str, there.reverts))
    if settings.command == SERVE:
        flags = arguments_of({"seed": seed, **options})
        more = [("--revert", numbers)] if numbers else []
        more += [("--probes", name) for name in there.probes]
        more += [("--mode", there.mode)] if there.mode else []
        more += [("--content", folder) for folder in there.content]
        own = own_python(_SERVE, "serve", "--port", "{port}", *flags)
        return StartCommand((*own, *(word for pair in more for word in pair)), env)
    try:
        words = tuple(shlex.split(settings.command))
    except ValueError as error:
        raise SpecDebugError(f"target.launch: {error} in {settings.command!r}") from None
    return StartCommand(words, env | ({REVERTS: numbers} if numbers else {}))


PORTS = range(20000, 32000)
"""Below those that Linux gives to connections, and so far from the last one that a server may add to its own, as SGLang
does for gRPC."""


def free_port() -> int:
    """A port of this machine that is not listened on. Raises NoServer."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise NoServer(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


LOOK_S = 0.1
WAITING_S = 10.0
"""Seconds after which it is said what is waited for, and for how long; again each time that twice as many are over."""
NO_ROUTE = (404, 405, 501)
"""Answers of a front that has no such route."""
NO_ROUTE_S = 20.0
"""Seconds for which it may answer so while it comes up."""
LOG_LOOK_S = 1.0
"""Seconds between two looks at how long the log has become."""
PORTS_TRIED = 3
"""Ports that a server is started on, where another process takes each first."""
END_S = 10.0
"""Seconds that a server has to end once it is told to."""
DYING_S = 3.0
"""Seconds for which a server whose connection broke is waited for, to learn what it died of."""


class StartFailed(Exception):
    """A server that ended before it was ready, of a failure that its log names."""

    def __init__(self, signature: str, message: str) -> None:
        super().__init__(message)
        self.signature = signature


class NeverReady(NoServer):
    """A server that nothing is said of: it did not answer in time, for this machine may be slow."""

    exit_code = 125


class ServerProcess:
    """A server that was started. Ended with all that it has started itself, by :meth:`end` or when this process is
    gone. Its log is kept from filling the disk (``room``)."""

    def __init__(self, command: StartCommand, label: str, folder: str | None, room: LogRoom | None = None) -> None:
        """Start it. Raises NoServer."""
        self.log = ServerLog(_log_file(label, folder), room)
        self._keeps_log = folder is not None
        self._command = command
        self._tried = 0
        self._over = threading.Event()
        try:
            self._start()
        except NoServer:
            self.log.path.unlink(missing_ok=True)  # nothing was ever said
            raise
        threading.Thread(target=self._watch_log, daemon=True).start()

    def _watch_log(self) -> None:
        while not self._over.wait(LOG_LOOK_S):
            self.log.cut()

    def _start(self) -> None:
        """Start it on a port that is free. Raises NoServer."""
        port = free_port()
        words = self._command.on(port)
        self.url = f"http://127.0.0.1:{port}"
        self._tried += 1
        try:
            # to its end, wherever that is once the log was cut
            with open(self.log.path, "ab") as log:
                self._process = Child(words, self._command.env, stdout=log)
        except OSError as error:
            raise NoServer(f"target.launch: cannot start {one_line(words[0], 80)}: {error.strerror or error}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(
        self, path: str, timeout_s: float, said: Callable[[str], None], headers: Sequence[tuple[str, str]]
    ) -> None:
        """Wait until ``path`` answers 200; ``said`` is told the last line of the log, and after a while what is waited
        for. Raises NoServer, also for a front that has no such route, NeverReady once the time is up, or StartFailed
        for a failure that the log names."""
        began, last, waiting, next_s = time.monotonic(), "", "", WAITING_S
        lacks_since: float | None = None
        while (answered := status_of(self.url + path, headers)) != 200 or not self.alive():
            now = time.monotonic()
            lacks = f"{path} answers {answered}" if answered in NO_ROUTE else ""
            if now - began >= next_s and not lacks:
                does = "does not answer" if answered is None else f"answers {answered}"
                waiting = f"; {path} {does} after {next_s:g} s, waiting up to {timeout_s:g} s (ready_timeout_s)"
                next_s *= 2
            line = lacks or (self.log.last_line(f"GET {path} ") or "starting") + waiting
            if line != last:
                said(f"server: {line}")
                last = line
            if (status := self._process.poll()) is not None:
                self._ended_early(status)
            lacks_since = (lacks_since or now) if lacks else None
            if lacks_since and now - lacks_since >= NO_ROUTE_S:
                told = f"{lacks}: name what answers 200 once the server is ready in the target, as `ready: /PATH`"
                raise NoServer(f"{told}; its log is {self.log.path}")
            if now - began > timeout_s:
                said_last = self.log.last_words() or "it said nothing"
                late = f"the server did not answer {path} within {timeout_s:g} s (ready_timeout_s): {said_last}"
                raise NeverReady(f"{late}; its log is {self.log.path}")
            time.sleep(LOOK_S)
        self.log.begin()
        said("")

    def _ended_early(self, status: int) -> None:
        """Start it anew where its port was taken; else say what it died of."""
        taken = self.log.port_taken()
        if taken and self._tried < PORTS_TRIED:
            self._end_process()
            self._start()
            return
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        words = self.log.last_words() or "it said nothing"
        told = f"the server ended ({how}) before it was ready: {words}; its log is {self.log.path}"
        name = name_of(self.log.scan(), status)
        if tells_of_damage(name) and not name.startswith("hang"):
            raise StartFailed(name, told)
        raise NoServer(f"{told} ({self._tried} ports were tried, and each is listened on)" if taken else told)

    def alive(self) -> bool:
        """Return True if it runs."""
        return self._process.poll() is None

    def status(self) -> int | None:
        return self._process.ended_within(DYING_S)

    def release(self, sound: bool) -> None:
        self.end()

    def end(self, *, passed: bool = False) -> None:
        """End it, and all that it has started, and wait until that is gone. May be called more than once. ``passed``:
        all of its runs did; then its log goes, unless it lies in a folder that was asked for."""
        self._over.set()
        self._end_process()
        if passed and not self._keeps_log:
            self.log.path.unlink(missing_ok=True)
        else:
            self.log.cut()

    def _end_process(self) -> None:
        self._process.terminate()
        self._process.ended_within(END_S)
        self._process.end(marked=True)


def answers(url: str, headers: Sequence[tuple[str, str]] = ()) -> bool:
    """Return True if a URL itself answers 200."""
    return status_of(url, headers) == 200


def status_of(url: str, headers: Sequence[tuple[str, str]] = ()) -> int | None:
    """The status that a URL itself answers; None without an answer. No redirect is followed: it would get the headers,
    and a key of them."""
    import httpx

    try:
        secure = url.startswith("https:")  # else to read the certificates of authorities is time lost
        return httpx.get(url, headers=[*headers], timeout=5.0, trust_env=False, verify=secure).status_code
    except (httpx.HTTPError, httpx.InvalidURL):
        return None


def _log_file(label: str, folder: str | None) -> Path:
    """A new file for a server's log. Raises NoServer."""
    try:
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
        handle, path = tempfile.mkstemp(".log", f"specdebug-{label}-", folder)
        os.close(handle)
    except OSError as error:
        raise NoServer(f"target.log: no log can be written to {folder}: {error.strerror}") from None
    return Path(path)

"""Servers for a search, which outlive a worker's run and no more: a process keeps them until its standard input closes.
A worker says over a connection which server it wants, and gives it back. One that is sound, and well, waits for the
next who wants the same; one whose worker went away without a word is ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from specdebug.base.interpreters import own_python
from specdebug.targets.launch.log import ServerLog
from specdebug.targets.launch.process import ServerProcess, StartCommand, StartFailed, answers
from specdebug.targets.requests import NoServer
from specdebug.workers.child import Child

MAX_IDLE = 2
"""Servers that wait for a run that wants them, unless more runs go on at a time; of more, the one that has waited
longest is ended."""
_KEEP = "from specdebug.targets.launch.keeper import main; sys.exit(main(sys.argv[1], int(sys.argv[2])))"
PATIENCE_S = 30.0
"""Seconds that a keeper has to end its servers."""


@dataclass(frozen=True)
class ServerWish:
    """The server that a worker wants, as :class:`ServerProcess` and its ``wait_ready`` have it."""

    command: StartCommand
    label: str
    folder: str | None
    ready: str
    timeout_s: float
    headers: tuple[tuple[str, str], ...]


class Shelf:
    """The servers that wait, at most ``room``, and those in use. Any thread may use it."""

    def __init__(self, room: int = MAX_IDLE) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._idle: list[tuple[str, ServerProcess]] = []
        self._used: list[ServerProcess] = []
        self._closed = False

    def take(self, wish: ServerWish) -> ServerProcess | None:
        """A waiting server of the same command that is still well."""
        while True:
            with self._lock:
                found = next((pair for pair in self._idle if pair[0] == wish.command.key), None)
                if found is None:
                    return None
                self._idle.remove(found)
                self._used.append(found[1])
            if self.is_well(wish, found[1]):
                return found[1]
            self.end(found[1])

    @staticmethod
    def is_well(wish: ServerWish, server: ServerProcess) -> bool:
        """Return True if a server runs and answers."""
        return server.alive() and answers(server.url + wish.ready, wish.headers)

    def using(self, server: ServerProcess) -> None:
        """Take in that a server was started. Ends it where everything is being ended."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._used.append(server)
        if closed:
            server.end()

    def put(self, wish: ServerWish, server: ServerProcess) -> None:
        """Have a server wait."""
        with self._lock:
            self._used.remove(server)
            self._idle.append((wish.command.key, server))
            late = self._idle.pop(0)[1] if len(self._idle) > self._room else None
        if late is not None:
            late.end(passed=True)

    def end(self, server: ServerProcess) -> None:
        """End a server that is in use."""
        with self._lock:
            if server in self._used:
                self._used.remove(server)
        server.end()

    def close(self) -> None:
        """End all, now and from now on."""
        with self._lock:
            self._closed = True
            idle, used = [server for _, server in self._idle], [*self._used]
        for server in idle:  # each came back as sound every time
            server.end(passed=True)
        for server in used:
            server.end()


def main(address: str, room: int) -> int:
    """Keep servers, of which so many may wait, until standard input closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A process that is told to end closes the pipe. Not SIG_IGN, which servers would inherit.
        signal.signal(number, lambda *_: None)
    shelf = Shelf(room)
    with Listener(address, "AF_UNIX", backlog=64) as listening:
        print("ready", flush=True)
        threading.Thread(target=_accept, args=(listening, shelf), daemon=True).start()
        while os.read(0, 4096):
            pass
        shelf.close()
    return 0


def _accept(listening: Listener, shelf: Shelf) -> None:
    with contextlib.suppress(OSError):  # closed: it is over
        while True:
            threading.Thread(target=_lend, args=(listening.accept(), shelf), daemon=True).start()


def _lend(talk: Connection, shelf: Shelf) -> None:
    """Serve one worker. It sends its :class:`ServerWish` and hears of progress, and ``ready`` with the server or the
    error that there is none; then it sends ``status`` any number of times, and at last whether the server is sound."""
    server: ServerProcess | None = None
    with contextlib.suppress(OSError, EOFError), talk:
        try:
            wish: ServerWish = talk.recv()
            server = shelf.take(wish)
            if server is None:
                server = ServerProcess(wish.command, wish.label, wish.folder)
                shelf.using(server)
                server.wait_ready(
                    wish.ready, wish.timeout_s, lambda text: talk.send(("progress", (text,))), wish.headers
                )
            talk.send(("ready", (server.url, server.log.path, server.pid)))
            while (said := talk.recv()) == "status":
                talk.send(server.status())
            if said and shelf.is_well(wish, server):
                shelf.put(wish, server)
            else:
                shelf.end(server)
            server = None
            talk.send("released")
        except (NoServer, StartFailed) as error:
            if server is not None:
                shelf.end(server)
                server = None
            signature = (error.signature,) if isinstance(error, StartFailed) else ()
            talk.send((type(error), (*signature, str(error))))
        finally:
            if server is not None:
                shelf.end(server)


class LentServer:
    """A server that a keeper lends, as ``http.server.Host`` sees it."""

    def __init__(self, address: str, wish: ServerWish, said: Callable[[str], None]) -> None:
        """Wait until it is ready. Raises NoServer, NeverReady, or StartFailed."""
        self._talk = Client(address, "AF_UNIX")
        self._talk.send(wish)
        what, told = self._hear()
        while what == "progress":
            said(*told)
            what, told = self._hear()
        if what != "ready":
            raise what(*told)
        self.url: str
        self.pid: int
        self.url, path, self.pid = told
        self.log = ServerLog(path)
        self.log.findings()  # of runs before this one
        self.log.begin()

    def status(self) -> int | None:
        self._talk.send("status")
        status: int | None = self._hear()
        return status

    def release(self, sound: bool) -> None:
        self._talk.send(sound)
        self._hear()  # who comes next is to find it
        self._talk.close()

    def _hear(self) -> Any:
        try:
            return self._talk.recv()
        except EOFError:
            raise NoServer("the process that keeps servers is gone") from None


class ServerKeeper:
    """The search's side of the process that keeps servers; :meth:`close` ends it and every server."""

    def __init__(self, room: int = MAX_IDLE, env: Mapping[str, str] = os.environ) -> None:
        """Start it; ``room``: servers that may wait. Raises NoServer."""
        self._folder = tempfile.mkdtemp(prefix="specdebug-servers-")
        self.address = os.path.join(self._folder, "socket")
        words = own_python(_KEEP, self.address, str(room))
        try:
            self._process = Child(words, env, stdin=subprocess.PIPE, stderr=None)
        except OSError as error:
            raise NoServer(f"cannot start the process that keeps servers: {error.strerror}") from None
        assert self._process.stdout is not None  # for the type checker: a pipe was asked for
        if self._process.stdout.readline() != b"ready\n":
            self.close()
            raise NoServer("the process that keeps servers did not start")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.ended_within(PATIENCE_S)
        self._process.end()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

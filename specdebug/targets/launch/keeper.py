"""The process that keeps servers for a search: trials of one set of reverts share one that is still healthy.

Workers live for one run; a server that several runs use must outlive them, and no longer than the search. So the search
starts this process, whose standard input is a pipe to it: when that closes, however it came to, every server is ended.
Workers come over a socket, a connection each: they say which command they want, hear how the start goes on, and give
the server back. One that was given back as sound, and is well, waits for the next who wants the same; one whose worker
went away without a word is ended.

Lines are JSON objects. From a worker: the :class:`ServerWish`, then ``{"status": true}`` any number of times, and
``{"release": SOUND}``. To it: ``{"progress": TEXT}``, then ``{"url": ..., "log": ..., "pid": ..., "ready": BYTES}`` or
``{"failed": TEXT, "signature": ..., "late": ...}``, then ``{"status": N}``, and ``{"released": true}`` once that is
done.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from specdebug.targets.launch.command import StartCommand
from specdebug.targets.launch.process import NeverReady, ServerProcess, StartFailed, answers
from specdebug.targets.serving import NoServer

MAX_IDLE = 2
"""Servers that wait for a run that wants them, unless more runs go on at a time; of more, the one that has waited
longest is ended."""


@dataclass(frozen=True)
class ServerWish:
    """The server that a worker wants."""

    words: tuple[str, ...]
    env: dict[str, str]
    label: str
    folder: str | None
    ready: str
    timeout_s: float
    headers: tuple[tuple[str, str], ...]

    @property
    def line(self) -> str:
        """As it is sent."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def read(cls, line: str) -> ServerWish:
        """Inverse of :attr:`line`."""
        said = json.loads(line)
        headers = tuple((name, value) for name, value in said.pop("headers"))
        return cls(**{**said, "words": tuple(said["words"]), "headers": headers})

    @property
    def command(self) -> StartCommand:
        return StartCommand(self.words, self.env)


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
            if found[1].alive() and answers(found[1].url + wish.ready, wish.headers):
                return found[1]
            self.end(wish, found[1])

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

    def end(self, wish: ServerWish, server: ServerProcess) -> None:
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
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        threading.Thread(target=_accept, args=(listening, shelf), daemon=True).start()
        while os.read(0, 4096):
            pass
        shelf.close()
    return 0


def _accept(listening: socket.socket, shelf: Shelf) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # closed: it is over
            return
        threading.Thread(target=_lend, args=(connection, shelf), daemon=True).start()


def _lend(connection: socket.socket, shelf: Shelf) -> None:
    """Serve one worker."""
    server: ServerProcess | None = None
    with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rw", encoding="utf-8") as talk:
        try:
            wish = ServerWish.read(talk.readline())
            server = _started(wish, talk, shelf)
            if server is None:
                return
            _say(talk, url=server.url, log=str(server.log.path), pid=server.pid, ready=server.log.begun)
            for line in talk:
                said = json.loads(line)
                if "status" in said:
                    _say(talk, status=server.status())
                elif "release" in said:
                    sound = said["release"] and server.alive() and answers(server.url + wish.ready, wish.headers)
                    (shelf.put if sound else shelf.end)(wish, server)
                    server = None
                    _say(talk, released=True)
                    return
        finally:
            if server is not None:
                shelf.end(wish, server)


def _started(wish: ServerWish, talk: TextIO, shelf: Shelf) -> ServerProcess | None:
    """A server that is ready; None, and the worker told, where there can be none."""
    if (waiting := shelf.take(wish)) is not None:
        return waiting
    server = None
    try:
        server = ServerProcess(wish.command, wish.label, wish.folder)
        shelf.using(server)
        server.wait_ready(wish.ready, wish.timeout_s, lambda text: _say(talk, progress=text), wish.headers)
    except (NoServer, StartFailed) as error:
        if server is not None:
            shelf.end(wish, server)
        signature = getattr(error, "signature", None)
        _say(talk, failed=str(error), signature=signature, late=isinstance(error, NeverReady))
        return None
    except BaseException:
        if server is not None:
            shelf.end(wish, server)
        raise
    return server


def _say(talk: TextIO, **said: Any) -> None:
    talk.write(json.dumps(said) + "\n")
    talk.flush()

"""A server for one run: this worker's own process, or one that the search's keeper lends."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdebug.base.interpreters import own_python
from specdebug.targets.launch.keeper import MAX_IDLE, ServerWish
from specdebug.targets.launch.log import ServerLog
from specdebug.targets.launch.process import NeverReady, StartFailed
from specdebug.targets.serving import NoServer
from specdebug.workers.child import Child

_KEEP = "from specdebug.targets.launch.keeper import main; sys.exit(main(sys.argv[1], int(sys.argv[2])))"
PATIENCE_S = 30.0
"""Seconds that a keeper has to end its servers, and to answer anything but a start."""


class LentServer:
    """A server that a keeper lends, as ``http.failures.Host`` sees it."""

    def __init__(self, address: str, wish: ServerWish, said: Callable[[str], None]) -> None:
        """Wait until it is ready. Raises NoServer, NeverReady, or StartFailed."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._talk = self._socket.makefile("rw", encoding="utf-8")
        self._talk.write(wish.line)
        self._talk.flush()
        answer = self._hear()
        while "progress" in answer:
            said(answer["progress"])
            answer = self._hear()
        if "failed" in answer:
            if answer["signature"]:
                raise StartFailed(answer["signature"], answer["failed"])
            raise (NeverReady if answer["late"] else NoServer)(answer["failed"])
        self.url: str = answer["url"]
        self.pid: int = answer["pid"]
        self.log = ServerLog(Path(answer["log"]), ready=answer["ready"])
        self.log.findings()  # of runs before this one
        self.log.begin()

    def status(self) -> int | None:
        self._talk.write('{"status": true}\n')
        self._talk.flush()
        status: int | None = self._hear()["status"]
        return status

    def release(self, sound: bool) -> None:
        self._talk.write(json.dumps({"release": sound}) + "\n")
        self._talk.flush()
        self._hear()  # who comes next is to find it
        self._talk.close()
        self._socket.close()

    def _hear(self) -> dict[str, Any]:
        line = self._talk.readline()
        if not line:
            raise NoServer("the process that keeps servers is gone")
        said: dict[str, Any] = json.loads(line)
        return said


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

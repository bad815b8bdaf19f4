"""A server's process: started as the leader of a group of its own, followed by its log, ended with all its group."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdebug.errors import one_line
from specdebug.logs.naming import name_of, tells_of_damage
from specdebug.logs.scan import Scan
from specdebug.targets.inside.looks import LOG_VARIABLE, looks_folder
from specdebug.targets.launch.command import StartCommand, free_port
from specdebug.targets.launch.log import ServerLog
from specdebug.targets.serving import NoServer
from specdebug.workers.lifeline import lifeline
from specdebug.workers.reaper import kill_group, wait_for

LOOK_S = 0.1
END_S = 10.0
"""Seconds that a server has to end once it is told to."""
DYING_S = 3.0
"""Seconds for which a server whose connection broke is waited for, to learn what it died of."""


class StartFailed(Exception):
    """A server that ended before it was ready, of a failure that its log names."""

    def __init__(self, signature: str, message: str) -> None:
        super().__init__(message)
        self.signature = signature


class ServerProcess:
    """A server that was started. Ended with its whole group, by :meth:`end` or when this process is gone."""

    def __init__(self, command: StartCommand, label: str, folder: str | None) -> None:
        """Start it. Raises NoServer."""
        port = free_port()
        words = command.on(port)
        self.url = f"http://127.0.0.1:{port}"
        self.log = ServerLog(_log_file(label, folder))
        told = {**command.env, LOG_VARIABLE: str(self.log.path)}
        try:
            with open(self.log.path, "wb") as log, lifeline.starting(told) as (self._key, env):
                self._process = subprocess.Popen(
                    words,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise NoServer(f"target.launch: cannot start {one_line(words[0], 80)}: {error.strerror or error}") from None
        lifeline.runs(self._key, self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log_path(self) -> str:
        return str(self.log.path)

    def wait_ready(
        self, path: str, timeout_s: float, said: Callable[[str], None], headers: Sequence[tuple[str, str]]
    ) -> None:
        """Wait until ``path`` answers 200; ``said`` is told the last line of the log. Raises NoServer, or StartFailed
        for a failure that the log names."""
        until, last = time.monotonic() + timeout_s, ""
        while not answers(self.url + path, headers):
            line = self.log.last_line(f"GET {path} ") or "starting"
            if line != last:
                said(f"server: {line}")
                last = line
            if (status := self._process.poll()) is not None:
                self._ended_early(status)
            if time.monotonic() > until:
                raise NoServer(
                    f"the server did not answer {path} within {timeout_s:g} s; its log is {self.log_path}, "
                    f"which ends with: {last}"
                )
            time.sleep(LOOK_S)
        said("")

    def _ended_early(self, status: int) -> None:
        name = name_of(self.log.scan(), status)
        told = f"the server ended (exit status {status}) before it was ready; its log is {self.log_path}"
        if tells_of_damage(name) and not name.startswith("hang"):
            raise StartFailed(name, told)
        raise NoServer(f"{told}, which ends with: {self.log.last_line() or 'nothing'}")

    def alive(self) -> bool:
        """Return True if it runs."""
        return self._process.poll() is None

    def status(self) -> int | None:
        try:
            return self._process.wait(DYING_S)
        except subprocess.TimeoutExpired:
            return None

    def scan(self) -> Scan:
        return self.log.scan()

    def findings(self) -> Sequence[tuple[str, str]]:
        return self.log.findings()

    def hits(self) -> Mapping[str, Mapping[str, int]]:
        return self.log.hits()

    def reached(self) -> Mapping[str, int]:
        return self.log.reached()

    def injections(self) -> Sequence[Mapping[str, Any]]:
        return self.log.injections()

    def new_problems(self) -> Sequence[str]:
        return self.log.new_problems()

    def said(self, words: str) -> str:
        return self.log.last_with(words)

    def release(self, sound: bool) -> None:
        self.end()

    def end(self) -> None:
        """End it, and all of its group, and wait until it is gone."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        kill_group(self._process.pid)  # what it left, or itself
        self._process.wait()
        wait_for({self._process.pid})
        lifeline.ended(self._key)
        shutil.rmtree(looks_folder(self.log_path), ignore_errors=True)


def answers(url: str, headers: Sequence[tuple[str, str]] = (), timeout_s: float = 5.0) -> bool:
    """Return True if a URL answers 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=dict(headers)), timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def _log_file(label: str, folder: str | None) -> Path:
    """A new file for a server's log. Raises NoServer."""
    try:
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
        handle, path = tempfile.mkstemp(".log", f"specdebug-{label}-", folder)
    except OSError as error:
        raise NoServer(f"target.log: no log can be written to {folder}: {error.strerror}") from None
    os.close(handle)
    return Path(path)

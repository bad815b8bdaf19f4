"""A process that is started here, and all that it starts itself: nothing of it outlives us, however we end.

It leads a group and a session of its own, so a Ctrl-C in the terminal reaches us alone, and the reaper knows it from
before it exists until :meth:`Child.end` (``lifeline.py``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

from specdebug.base.errors import SpecDebugError
from specdebug.base.interpreters import own_python
from specdebug.workers.lifeline import lifeline
from specdebug.workers.machine_failure import MachineFailed, MachineFailure, machine_failure
from specdebug.workers.reaper import kill_group, kill_marked, wait_for

DUMP_SIGNAL = signal.SIGUSR1
"""A process of ours that gets this prints where every thread is, even from inside a C loop, and carries on."""
LOG_LIMIT = 64 * 1024
"""Bytes that are kept of the end of what a process prints."""


class WorkerStartError(SpecDebugError):
    """No worker can be started: torch does not import, or the system refuses processes."""


class Child(subprocess.Popen[bytes]):
    """A process that was started. Without other ``options`` it reads nothing, and what it prints is one pipe."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], **options: Any) -> None:
        """Start it. Raises OSError when it cannot be started, or there is no process or pipe left for the reaper."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with lifeline.starting(env) as (self._key, own):
            super().__init__(list(words), env=own, start_new_session=True, **{**streams, **options})
        lifeline.runs(self._key, self.pid)
        self._is_over = False

    def ended_within(self, seconds: float) -> int | None:
        """Return its status, as ``wait`` does; None where it has not ended by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(seconds)
        return None

    def kill_all(self) -> None:
        """Kill it with its group, unless its end is known: the number may be another's by then."""
        if self.returncode is None:
            kill_group(self.pid)

    def end(self, *, marked: bool = False) -> int:
        """Kill what is left of its group, itself too, and return its status once it is gone. ``marked``: kill, and wait
        for, what has left its group as well. May be called more than once."""
        if self._is_over:
            return self.wait()
        kill_group(self.pid)
        others = kill_marked({self._key}) if marked else set()
        status = self.wait()
        if marked:
            wait_for({self.pid, *others})
        lifeline.ended(self._key)
        self._is_over = True
        return status


class OwnChild(Child):
    """A process that runs code of ours, with a socket between it and us.

    Attributes:
        channel: our end; the number of its own end is the first of its arguments.
        log: what it prints, to read from.
    """

    log: IO[bytes]

    def __init__(self, code: str, *arguments: str, **env: str) -> None:
        """Start it; ``env`` is beside our own, in which no fix is reverted. Raises WorkerStartError, or MachineFailed
        when the system has no process or no descriptor left to give."""
        ours = {name: value for name, value in os.environ.items() if name != "SGLANG_DEBUG_REVERT_PR"}
        try:
            self.channel, theirs = socket.socketpair()
        except OSError as error:
            raise refused(error) from error
        words = own_python(code, str(theirs.fileno()), *arguments)
        try:
            with theirs:
                super().__init__(words, {**ours, "TOKENIZERS_PARALLELISM": "false", **env}, pass_fds=(theirs.fileno(),))
        except OSError as error:
            self.channel.close()
            raise refused(error) from error
        assert self.stdout is not None  # for the type checker: a pipe was asked for
        self.log = self.stdout
        self._tail = b""

    def take_log(self, data: bytes) -> None:
        """Keep the end of what it has printed."""
        self._tail = (self._tail + data)[-LOG_LIMIT:]

    @property
    def said(self) -> str:
        """The end of what it has printed, as far as :meth:`take_log` was told."""
        return self._tail.decode("utf-8", "replace")


def refused(error: OSError) -> SpecDebugError:
    """Return the error for what the system would not give when workers were to be started."""
    return cannot_start(f"cannot start a worker process: {error}", machine_failure(error))


def cannot_start(message: str, failure: MachineFailure | None) -> SpecDebugError:
    """Return the error for workers that cannot be had: the machine's where it is, else one to mend."""
    return MachineFailed(failure) if failure is not None else WorkerStartError(message)

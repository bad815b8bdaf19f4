"""The front's side of the engine's process: start it, end it, and say how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import replace

from specdebug.apps.serve.launch import Launch
from specdebug.base.interpreters import own_python
from specdebug.workers.forkserver import DUMP_SIGNAL
from specdebug.workers.job import LOG_LIMIT, EndKind, WorkerEnd
from specdebug.workers.lifeline import lifeline
from specdebug.workers.reaper import kill_group
from specdebug.workers.server import refused
from specdebug.workers.system import oom_kills
from specdebug.workers.wire import JOB, send

GONE_S = 1.0
"""Seconds that the engine's process may take to be gone once its socket is closed."""
_LOOK_S = 0.01
_BOOT = "from specdebug.apps.serve.engine_process import main, leave; leave(main(sys.argv[1:]))"


class EngineProcess:
    """A process that was started, leader of a group and a session of its own: a Ctrl-C does not reach it.

    Attributes:
        channel: the socket to it; what it says, and its end, come from there.
        log: what it prints, as a file to read from.
        pid: the number of the process and of its group.
    """

    def __init__(self, launch: Launch) -> None:
        """Raises WorkerStartError, or MachineFailed when the system has no process or no descriptor left to give."""
        env = {name: value for name, value in os.environ.items() if name != "SGLANG_DEBUG_REVERT_PR"}
        env.setdefault("OMP_NUM_THREADS", "1")
        env["TOKENIZERS_PARALLELISM"] = "false"
        try:
            self.channel, theirs = socket.socketpair()
        except OSError as error:
            raise refused(error) from error
        command = own_python(_BOOT, str(theirs.fileno()))
        try:
            with theirs, lifeline.starting(env) as (self._key, own):
                self._process = subprocess.Popen(
                    command,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=own,
                    start_new_session=True,
                )
        except OSError as error:
            self.channel.close()
            raise refused(error) from error
        self.pid = self._process.pid
        lifeline.runs(self._key, self.pid)
        assert self._process.stdout is not None  # for the type checker: we asked for a pipe
        self.log = self._process.stdout
        self._began = time.monotonic()
        self._oom_kills = oom_kills()
        self._killed_for: EndKind | None = None
        self._tail = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is gone, which its socket shows
            send(self.channel, JOB, launch)

    def take_log(self, data: bytes) -> None:
        """Keep the end of what it printed."""
        self._tail = (self._tail + data)[-LOG_LIMIT:]

    def dump(self) -> None:
        """Have it print where it is, even from inside a C loop."""
        if self._process.returncode is None:
            os.kill(self.pid, DUMP_SIGNAL)

    def kill(self, why: EndKind | None = None) -> None:
        """Kill it and what it started; ``why`` is what it has ended of."""
        self._killed_for = self._killed_for or why
        if self._process.returncode is None:  # else the number may be another's by now
            kill_group(self.pid)

    def wait(self) -> WorkerEnd:
        """How it ended; one that is not gone :data:`GONE_S` after its socket closed is killed."""
        until = time.monotonic() + GONE_S
        while not (ended := self._has_ended()) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        self.kill(None if ended else "exit")  # what it left behind, too; not yet reaped, so the number is its own
        status = self._process.wait()
        lifeline.ended(self._key)
        kind: EndKind = self._killed_for or ("signal" if status < 0 else "exit")
        return WorkerEnd(kind, status, time.monotonic() - self._began, 0.0, "")

    def with_log(self, end: WorkerEnd) -> WorkerEnd:
        """The end with the end of what it printed, once all of that is read."""
        return replace(end, log=self._tail.decode("utf-8", "replace"))

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def killed_for_memory(self, end: WorkerEnd) -> bool:
        """Return True if the kernel has killed somebody for want of memory since this process began, and it got the
        signal that this comes with."""
        now = oom_kills()
        grown = self._oom_kills is not None and now is not None and now > self._oom_kills
        return end.status == -signal.SIGKILL and end.kind == "signal" and grown

"""The parent's side of one fork server: start it, ask it, give it up, end it.

**A stopped server.** The fork server signals workers, for only who reaps one knows that its number is still its own.
Where its help is due it is asked if it is there; if it does not answer it is killed from here with its process group,
which is all its workers. Those past their time have hung; the others say why they ended.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from specdebug.base import interrupts
from specdebug.base.errors import SpecDebugError
from specdebug.base.interpreters import own_python
from specdebug.workers.job import LOG_LIMIT
from specdebug.workers.lifeline import lifeline
from specdebug.workers.machine_failure import MachineFailed, MachineFailure, failure_in_log, machine_failure
from specdebug.workers.reaper import kill_group
from specdebug.workers.wire import ASK, PREPARE, LineReader, send

ANSWER_S = 5.0
"""Seconds that a fork server may take to answer; it does nothing that takes longer than a fork."""
BUSY_S = 600.0
"""The same while it imports its libraries or prepares something."""
_LOOK_S = 0.25
"""Seconds that one look at the silent server counts for at most, and that one wait for its end takes."""

_BOOT = "from specdebug.workers.forkserver import main; sys.exit(main(sys.argv[1:]))"


class WorkerStartError(SpecDebugError):
    """No worker can be started: torch does not import, or the system refuses processes."""


class Server:
    """A fork server that was started; it loads its modules while the caller goes on. End it with :meth:`close`.

    Attributes:
        ready: it has loaded its modules, and forks workers.
        given_up: why it was killed for not answering, if it was.
        pid: the number of its process, and of its process group, in which all its workers are.
        reply_fd: becomes readable when it has said something, or is gone.
        log_fd: becomes readable when it has printed something.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        """Raises WorkerStartError, or MachineFailed when the system has no process or no descriptor left to give."""
        self.ready = False
        self.given_up: str | None = None
        self._replies = LineReader()
        self._log = b""
        self._silence = _Silence()
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise refused(error) from error
        env = {name: value for name, value in os.environ.items() if name != "SGLANG_DEBUG_REVERT_PR"}
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
            env[name] = "1"
        env.update(TOKENIZERS_PARALLELISM="false", PYTHONUNBUFFERED="1")
        command = own_python(_BOOT, str(theirs.fileno()), *preload)
        try:
            # A session of its own, so that a Ctrl-C in the terminal reaches the parent alone.
            with lifeline.starting(env) as (self._key, own):
                self._process = subprocess.Popen(
                    command,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=own,
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            theirs.close()
            raise refused(error) from error
        theirs.close()
        lifeline.runs(self._key, self._process.pid)
        ours.settimeout(BUSY_S)  # a stopped server takes in no more than the socket holds
        assert self._process.stderr is not None  # for the type checker: we asked for a pipe
        self._sock, self._stderr = ours, self._process.stderr
        self.pid = self._process.pid
        self.reply_fd, self.log_fd = ours.fileno(), self._stderr.fileno()

    @property
    def returncode(self) -> int | None:
        """Return how it ended, as of a subprocess; None while it runs."""
        return self._process.returncode

    def prepare(self, target: str, argument: Any) -> None:
        """Have it call a ``module:function`` with its argument before it forks workers for jobs sent later."""
        self._silence.tasks += 1
        self.send(PREPARE, {"target": target, "payload": pickle.dumps(argument)})

    def send(self, tag: bytes, payload: Any, fds: tuple[int, ...] = ()) -> None:
        """Tell it something; one that has died shows as a closed socket in the next :meth:`hear`."""
        try:
            send(self._sock, tag, payload, fds)
        except TimeoutError:
            self._give_up(BUSY_S)
        except (BrokenPipeError, ConnectionResetError):
            return

    def hear(self) -> list[dict[str, Any]] | None:
        """Return what it has said; None when it is gone."""
        try:
            data = self._sock.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        replies = list(self._replies.feed(data))
        for reply in replies:
            self._silence.broken("here" in reply)
            if "ready" in reply:
                self.ready = True
            if "ready" in reply or "prepared" in reply:
                self._silence.tasks -= 1
        return replies

    def read_log(self) -> bool:
        """Take in what it has printed; return False once nothing more can come."""
        data = os.read(self._stderr.fileno(), 1 << 16)
        self._log = (self._log + data)[-LOG_LIMIT:]
        return bool(data)

    def mind(self) -> None:
        """Call this again and again while it has something to do: one that is silent for too long is killed."""
        if self._silence.should_ask():
            self.send(ASK, None)
        elif self.given_up is None and (limit_s := self._silence.limit_passed()):
            self._give_up(limit_s)

    def _give_up(self, limit_s: float) -> None:
        """Kill it and all its workers; whoever listens finds its socket closed."""
        why = "it and its workers were killed; did something stop it?"
        self.given_up = f"the fork server did not answer for {limit_s:g} s: {why}"
        kill_group(self.pid)

    def wait(self) -> int:
        """Return its exit status, once it is gone and its last words are read."""
        status = self._process.wait()
        with contextlib.suppress(OSError):
            self._log += self._stderr.read() or b""
        return status

    def last_words(self, status: int) -> SpecDebugError:
        """Return the error for one that was gone before it was ready."""
        log = self._log.decode("utf-8", "replace").strip()
        last = self.given_up or (log.splitlines()[-1] if log else f"exit status {status}")
        killed = status == -signal.SIGKILL and self.given_up is None
        failure = MachineFailure("killed", "the fork server got SIGKILL") if killed else failure_in_log(log)
        return cannot_start(f"the worker process could not start: {last}", failure)

    def close(self) -> None:
        """End it, and with it every worker, and wait until it is gone."""
        self._sock.close()
        self._stderr.close()
        # One that is ready sees its socket closed and ends its workers; one still importing has none.
        if not self.ready:
            self._process.kill()
        patience, looks = interrupts.Patience(), int(ANSWER_S / _LOOK_S)
        while self._process.poll() is None:
            looks -= 1
            if patience.over or looks < 0:
                kill_group(self.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_S)
        lifeline.ended(self._key)


class _Silence:
    """Measures how long the fork server has owed an answer, in time that this process has spent looking: should both
    have stood still together (a laptop asleep, a container frozen), nobody is to blame."""

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._owed_s = 0.0
        self._asked = False
        self.tasks = 1  # imports and preparations that it has not reported the end of

    def should_ask(self) -> bool:
        """Look once more, while an answer matters. Return True if the server is to be asked now if it is there."""
        now = time.monotonic()
        self._owed_s += min(now - self._looked_at, _LOOK_S) if self._asked else 0.0
        self._looked_at = now
        asked, self._asked = self._asked, True
        return not asked

    def broken(self, alive: bool) -> None:
        """Take in that it has said something; ``alive`` if that was its answer."""
        self._owed_s = 0.0
        if alive:
            self._asked = False

    def limit_passed(self) -> float | None:
        """Return how long it may take now, if it has taken longer."""
        limit_s = BUSY_S if self.tasks else ANSWER_S
        return limit_s if self._owed_s > limit_s else None


def refused(error: OSError) -> SpecDebugError:
    """Return the error for what the system would not give when workers were to be started."""
    return cannot_start(f"cannot start a worker process: {error}", machine_failure(error))


def cannot_start(message: str, failure: MachineFailure | None) -> SpecDebugError:
    """Return the error for workers that cannot be had: the machine's where it is, else one to mend."""
    return MachineFailed(failure) if failure is not None else WorkerStartError(message)

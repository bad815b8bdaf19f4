"""A process that is started here, and all that it starts itself: nothing of it outlives us, however we end.

The reaper (``reaper.py``) knows every process group started here from before it exists until :meth:`Child.end`, and
kills those left when our pipe to it closes; a file lock that it shares (:meth:`Lifeline.holds`) is free only then.
"""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from specdebug.base.errors import SpecDebugError
from specdebug.base.interpreters import own_python
from specdebug.workers import reaper
from specdebug.workers.machine_failure import MachineFailed, MachineFailure, machine_failure
from specdebug.workers.reaper import kill_group, kill_marked, wait_for

_STARTS = 3
"""Reapers that are started, each of which is killed before it is told anything, until something else is wrong."""
_PATIENCE_S = reaper.LIMIT_S + 2.0  # seconds to wait for a reaper to be done


class Lifeline:
    """This process's side. There is one, :data:`lifeline`; tests make their own. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, str] = {}
        self._held: set[int] = set()
        self._pipe = -1
        self._reaper: subprocess.Popen[bytes] | None = None

    def begin(self, env: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Announce a process that is about to be started as the leader of a group of its own. Return its key, and the
        environment to start it with. Raises OSError when there is no process or pipe left for the reaper."""
        key = uuid.uuid4().hex
        try:
            self._tell(key, f"begin {key}\n")
        except OSError:
            self.ended(key)
            raise
        return key, {**env, reaper.KEY_VARIABLE: key}

    def runs(self, key: str, pid: int) -> None:
        """Take in that the process exists."""
        with contextlib.suppress(OSError):  # should there be no reaper to be had, the next that is had is told
            self._tell(key, f"runs {key} {pid}\n")

    def ended(self, key: str) -> None:
        """Take in that the process is gone, with its group, or was never started."""
        with contextlib.suppress(OSError):
            self._tell(key, None)

    @contextmanager
    def starting(self, env: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
        """Do as :meth:`begin`, for the time of a start: one that raises has started nothing."""
        key, own = self.begin(env)
        try:
            yield key, own
        except BaseException:
            self.ended(key)
            raise

    def holds(self, fd: int) -> None:
        """Have the reaper hold ``fd`` open, too, until all that was started has ended; a lock on it is shared. Raises
        OSError when there is no process or pipe left for another reaper."""
        with self._lock:
            self._held.add(fd)
            if self._reaper is not None:  # only a new one inherits it, and the old one is to end nothing
                old, its_pipe = self._reaper, self._pipe
                self._start_with_all()
                try:
                    for key in self._lines:
                        os.write(its_pipe, f"ended {key}\n".encode("ascii"))
                except OSError:  # it was killed, or stopped until the pipe was full
                    old.kill()
                _wait_for(old, its_pipe)

    def lets_go(self, fd: int) -> None:
        """Keep ``fd`` from the next reaper; a lock on it is to be released, not only to be closed."""
        with self._lock:
            self._held.discard(fd)

    def close(self) -> None:
        """End what still runs, as the end of this process would, and wait until the reaper is gone."""
        with self._lock:
            self._lines.clear()
            self._drop()

    def _tell(self, key: str, line: str | None) -> None:
        """Say where a process has got to, by a line that replaces the one before; by none that it has ended."""
        with self._lock:
            if line is not None:
                self._lines[key] = line
            elif self._lines.pop(key, None) is None:
                return
            if self._reaper is not None:
                try:
                    self._write(line or f"ended {key}\n")
                    return
                except OSError:  # it was killed, or stopped until the pipe was full
                    self._lose()
            if self._lines:
                self._start_with_all()

    def _start_with_all(self) -> None:
        """Start a reaper that knows all; one that is killed before it does is replaced."""
        for left in reversed(range(_STARTS)):
            self._start()
            try:
                for known in self._lines.values():
                    self._write(known)
            except OSError:
                self._lose()
                if not left:
                    raise
            else:
                return

    def _lose(self) -> None:
        assert self._reaper is not None
        self._reaper.kill()
        self._drop()

    def _write(self, line: str) -> None:
        os.write(self._pipe, line.encode("ascii"))  # all of it or nothing: it is shorter than PIPE_BUF

    def _start(self) -> None:
        # Without a key of its own: it must not be taken for what another specdebug, that runs this one, has started.
        env = {name: value for name, value in os.environ.items() if name != reaper.KEY_VARIABLE}
        theirs, ours = os.pipe()
        try:
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(reaper.__file__))],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=env,
                pass_fds=tuple(self._held),
                start_new_session=True,  # what is sent to our group or from the terminal does not reach it
            )
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        self._pipe = ours

    def _drop(self) -> None:
        if self._reaper is not None:
            _wait_for(self._reaper, self._pipe)
            self._reaper = None


def _wait_for(gone: subprocess.Popen[bytes], its_pipe: int) -> None:
    os.close(its_pipe)
    try:
        gone.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:  # stopped
        gone.kill()
        gone.wait()


lifeline = Lifeline()
atexit.register(lifeline.close)


DUMP_SIGNAL = signal.SIGUSR1
"""A process of ours that gets this prints where every thread is, even from inside a C loop, and carries on."""
LOG_LIMIT = 64 * 1024  # bytes that are kept of the end of what a process prints


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

    def __init__(
        self, code: str, *arguments: str, env: Mapping[str, str], words: Callable[..., list[str]] = own_python
    ) -> None:
        """Start it; ``env`` lies over our own, in which no fix is reverted, and ``words`` says which interpreter it is.
        Raises WorkerStartError, or MachineFailed when the system has no process or no descriptor left to give."""
        ours = {name: value for name, value in os.environ.items() if name != "SGLANG_DEBUG_REVERT_PR"}
        try:
            self.channel, theirs = socket.socketpair()
        except OSError as error:
            raise refused(error) from error
        command = words(code, str(theirs.fileno()), *arguments)
        try:
            with theirs:
                own = {**ours, "TOKENIZERS_PARALLELISM": "false", **env}
                super().__init__(command, own, pass_fds=(theirs.fileno(),))
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

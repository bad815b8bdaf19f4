"""End whatever we have started with us, even if we are killed and can do nothing about it.

A small process (``reaper.py``) holds one end of a pipe, this process the other. It knows every process group started
here that has not ended, and kills them when the pipe closes; a file lock that it shares (:meth:`Lifeline.holds`) is
free only then. ``PR_SET_PDEATHSIG`` would end the first process of a group only, exists on Linux alone, and fires when
the thread that forked ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from specdebug.workers import reaper

_STARTS = 3
"""Reapers that are started, each of which is killed before it is told anything, until something else is wrong."""
_PATIENCE_S = reaper.LIMIT_S + 2.0
"""Seconds to wait for a reaper to be done."""


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
        # Should there be no reaper and none to be had, the next that is had is told.
        with contextlib.suppress(OSError):
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
            if self._reaper is not None:  # only a new one inherits it
                old, its_pipe = self._reaper, self._pipe
                self._start_with_all()
                self._dismiss(old, its_pipe)

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

    def _dismiss(self, old: subprocess.Popen[bytes], its_pipe: int) -> None:
        """Let a reaper go whose place another has taken, and which is to end nothing."""
        try:
            for key in self._lines:
                os.write(its_pipe, f"ended {key}\n".encode("ascii"))
        except OSError:  # it was killed, or stopped until the pipe was full
            old.kill()
        _wait_for(old, its_pipe)

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
    """Close a reaper's pipe and wait until it is done."""
    os.close(its_pipe)
    try:
        gone.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:  # stopped
        gone.kill()
        gone.wait()


lifeline = Lifeline()
atexit.register(lifeline.close)

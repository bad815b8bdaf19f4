"""Commands run as process groups of their own, so that nothing of them is left when they are over or unwanted, nor when
this process is killed (``workers/child.py``).

All of the output is read while the command runs, for what it says went wrong; only its two ends are kept.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdebug.logs.scan import LogReader, Scan
from specdebug.workers.child import Child

END_BYTES = 64 * 1024
"""Bytes of the output that are kept from the beginning, and from the end."""
_STRAGGLER_S = 1.0
"""Seconds to wait for the end of the output once the command is over: a daemon it left may hold the pipe for ever."""


@dataclass(frozen=True)
class Ended:
    """The end of a command: ``status`` is negative for the signal that killed it, ``output`` both ends of what it
    printed, ``log`` what all of it says."""

    status: int
    timed_out: bool
    output: str
    seconds: float
    log: Scan


class CommandStopped(Exception):
    """The command was not started, or was killed, because :meth:`Processes.close` was called."""


class Processes:
    """Commands under way; :meth:`run` may be called by several threads at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Child] = set()
        self._closed = False

    def run(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float | None = None) -> Ended:
        """Run a command to its end; at its deadline its process group is killed. Raises CommandStopped when everything
        is being closed, OSError when it cannot be started."""
        begun = time.monotonic()
        with self._lock:
            if self._closed:
                raise CommandStopped
            process = Child(argv, env, cwd=cwd)
            self._running.add(process)
        output = _Output(process)
        late = threading.Event()
        timer = None
        if timeout_s is not None:
            # No thread can wait for longer, nor would anybody for these 292 years.
            timer = threading.Timer(min(timeout_s, threading.TIMEOUT_MAX), self._expire, (process, late))
            timer.daemon = True
            timer.start()
        status = process.wait()
        if timer is not None:
            timer.cancel()
        with self._lock:
            self._running.discard(process)
            closed = self._closed
            process.end()  # what it left in the background
        if closed:
            raise CommandStopped
        text, log = output.end()
        return Ended(status, late.is_set(), text, time.monotonic() - begun, log)

    def close(self) -> None:
        """Kill every group, and start none any more."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill_all()

    def _expire(self, process: Child, late: threading.Event) -> None:
        with self._lock:
            if process in self._running and process.returncode is None:
                late.set()
                process.kill_all()


class _Output:
    """The output of a process, read by a thread: both ends of it, and what all of it says."""

    def __init__(self, process: Child) -> None:
        assert process.stdout is not None  # for the type checker: a pipe was asked for
        self._pipe = process.stdout
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = False
        self._reader: LogReader | None = LogReader(settings=False)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            while data := os.read(self._pipe.fileno(), END_BYTES):
                with self._lock:
                    if self._reader is not None:  # else only drained: what still prints is not asked for
                        self._take(data, self._reader)

    def _take(self, data: bytes, reader: LogReader) -> None:
        reader.feed(data)
        room = END_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > END_BYTES:
            del self._tail[:-END_BYTES]
            self._dropped = True

    def end(self) -> tuple[str, Scan]:
        """Return the output as far as it has come, and what it says; nothing is read after this. Call it once."""
        self._thread.join(_STRAGGLER_S)
        with self._lock:
            assert self._reader is not None  # for the type checker: it is taken away here only
            reader, self._reader = self._reader, None
        gap = b"\n...\n" if self._dropped else b""
        return bytes(self._head + gap + self._tail).decode("utf-8", errors="replace"), reader.close()

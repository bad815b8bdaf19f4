"""Run a command of an installation. It ends with us, however we end, and a signal to us ends it at once.

What it says is followed here rather than left to the file of a log: where the disk is full, a log says nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from specdebug.base import interrupts
from specdebug.targets.installs.store import StoreError
from specdebug.workers.child import Child
from specdebug.workers.machine_failure import blamed

_LOOK_S = 0.1
"""Seconds after which a signal is heard at the latest."""
_TAIL_BYTES = 8192


@dataclass(frozen=True)
class StepEnded:
    """The end of a command: ``status`` is negative for the signal that killed it, ``tail`` the end of what it said."""

    status: int
    tail: str = ""


def run_logged(words: Sequence[str], log: Path) -> StepEnded:
    """Run a command to its end. What it says goes to the end of a log, as far as there is room; on a terminal its
    progress is seen there. Raises StoreError where it cannot be started, KeyboardInterrupt for a signal."""
    watched = sys.stdout is not None and sys.stdout.isatty()
    streams = (None, subprocess.PIPE) if watched else (subprocess.PIPE, subprocess.STDOUT)
    with _started(words, *streams) as process:
        pipe = process.stderr if watched else process.stdout
        assert pipe is not None  # for the type checker: a pipe was asked for
        tail = b""
        for data in _said(process, pipe):
            tail = (tail + data)[-_TAIL_BYTES:]
            with contextlib.suppress(OSError), log.open("ab") as sink:
                sink.write(data)
            if watched and sys.stderr is not None:
                with contextlib.suppress(OSError):
                    sys.stderr.write(data.decode("utf-8", "replace"))
                    sys.stderr.flush()
        return StepEnded(process.wait(), tail.decode("utf-8", "replace"))


def ask(words: Sequence[str], timeout_s: float) -> tuple[str, str]:
    """Return what a command says on stdout, and on stderr. Raises StoreError where it cannot be started or takes too
    long, KeyboardInterrupt for a signal."""
    until = time.monotonic() + timeout_s
    with _started(words, subprocess.PIPE, subprocess.PIPE) as process:
        while time.monotonic() < until:
            interrupts.check()
            with contextlib.suppress(subprocess.TimeoutExpired):
                said, trouble = process.communicate(timeout=_LOOK_S)
                return said.decode("utf-8", "replace"), trouble.decode("utf-8", "replace")
    raise StoreError(f"{words[0]} did not answer within {timeout_s:g} s")


@contextmanager
def _started(words: Sequence[str], stdout: int | None, stderr: int) -> Iterator[Child]:
    """Start a command as a group of its own; whatever is left of that at the end is killed. Raises StoreError."""
    try:
        process = Child(words, os.environ, stdout=stdout, stderr=stderr)
    except OSError as error:
        raise blamed(StoreError, f"{words[0]} does not run: {error.strerror}", error) from None
    try:
        yield process
    finally:
        process.end()
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()


def _said(process: Child, pipe: IO[bytes]) -> Iterator[bytes]:
    """Yield what a process says until it has ended. Raises KeyboardInterrupt."""
    while True:
        interrupts.check()
        if select.select([pipe], [], [], _LOOK_S)[0]:
            if not (data := os.read(pipe.fileno(), 1 << 16)):
                break
            yield data
        elif process.poll() is not None:  # what it left in the background holds the pipe
            return
    while process.poll() is None:
        interrupts.check()
        time.sleep(_LOOK_S)

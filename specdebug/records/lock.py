"""One writer at a time: a lock file beside a record holds the number of the process that writes to it.

The lock goes with its process, however that ends. The reaper may share it (``workers/lifeline.py``): that of a killed
process is free once all is gone that it had started. The next process waits for that, so nothing runs beside an orphan.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from specdebug.base import interrupts
from specdebug.records.record import Record
from specdebug.workers import reaper
from specdebug.workers.lifeline import lifeline
from specdebug.workers.system import is_gone

_REAPER_S = reaper.LIMIT_S + 5.0
"""Seconds to wait for the reaper of a process that was killed."""
_PAUSE_S = 0.02


class Lock:
    """The lock of a record, taken when it is made. A context manager; leaving it frees the record for others.

    Args:
        record: what it guards; its folder is made if need be.
        shared: the reaper holds it, too, until all that this process starts has ended.
        wait_s: seconds to wait for a process that is not gone.

    Raises ``record.kind`` where another process has it, or the lock file cannot be written.
    """

    def __init__(self, record: Record, *, shared: bool = False, wait_s: float = 0.0) -> None:
        self.path = record.path.with_name(record.path.name + ".lock")
        self._record = record
        try:
            self._file: int | None = self._take(wait_s)
        except OSError as error:
            raise record.not_written(error) from None
        self._shared = False
        if shared:
            self._share(self._file)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free it. May be called more than once."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        if self._shared:
            lifeline.lets_go(self._file)
        fcntl.flock(self._file, fcntl.LOCK_UN)  # the reaper may have it open, too
        os.close(self._file)
        self._file = None

    def _share(self, file: int) -> None:
        self._shared = True
        try:
            lifeline.holds(file)
        except OSError as error:
            self.close()
            told = f"cannot start the process that guards {self._record}: {error}"
            raise self._record.kind(told) from error

    def _take(self, wait_s: float) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The process that had it may have removed the file meanwhile; then the lock is on nothing.
                if _same_file(file, self.path):
                    os.ftruncate(file, 0)
                    os.pwrite(file, str(os.getpid()).encode(), 0)
                    return file
                os.close(file)
            except BlockingIOError:
                owner = os.pread(file, 20, 0).decode(errors="replace").strip() or "?"
                os.close(file)
                self._wait_for(owner, time.monotonic() - began, wait_s)
            except OSError:  # there is no room for the number
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
                os.close(file)
                raise

    def _wait_for(self, owner: str, waited_s: float, wait_s: float) -> None:
        """Wait a moment, if the owner is not to keep it for long; else raise."""
        gone = owner.isdecimal() and is_gone(int(owner))
        if waited_s > (_REAPER_S if gone else wait_s) or not (gone or wait_s):
            who = f"process {owner}" + (", which is gone, but not all that it had started" if gone else "")
            hint = f"wait for it to end, or {self._record.elsewhere}"
            raise self._record.kind(f"{self._record} is in use by {who}; {hint}")
        interrupts.check()  # not before the first try: results are kept after a signal, too
        time.sleep(_PAUSE_S)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False

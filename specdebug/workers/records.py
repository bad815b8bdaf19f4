"""Files that specdebug writes and reads again: a :class:`Record` is replaced whole, a :class:`LineRecord` grows.

A :class:`Lock` lets one process at a time write, and may be shared with the reaper: that of a killed process is free
once all is gone that it had started.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdebug.base import interrupts
from specdebug.base.errors import ContentError, SpecDebugError, Where
from specdebug.base.files import open_file, read_file, replace_file
from specdebug.base.schema import Item
from specdebug.base.yamlio import parse_json
from specdebug.workers import reaper
from specdebug.workers.child import lifeline
from specdebug.workers.machine_failure import blamed
from specdebug.workers.system import is_gone

_REAPER_S = reaper.LIMIT_S + 5.0  # seconds to wait for the reaper of a process that was killed
_PAUSE_S = 0.02
MAX_BYTES = 64 << 20  # bytes of a record that grows, at most


class RecordError(SpecDebugError):
    """A record is in use, damaged, of something else, or cannot be read or written; exit code 125 where the machine is
    at fault, as for a full disk."""


@dataclass(frozen=True)
class Record:
    """A record as messages name it. ``called``: its kind, as in "the journal". ``elsewhere``: the way to have another;
    ``mend``: to have a damaged one mended, first. ``kind``: of the errors."""

    path: Path
    called: str
    elsewhere: str
    mend: str = ""
    kind: type[RecordError] = RecordError

    def __str__(self) -> str:
        return f"{self.called} {self.path}"

    def not_written(self, error: OSError, consequence: str = "") -> RecordError:
        """The error for what the system would not write."""
        return blamed(self.kind, f"cannot write {self}: {error.strerror}{consequence}; {self.elsewhere}", error)

    def damaged(self, error: ContentError) -> RecordError:
        """The error for content that was never written so."""
        hint = ", or ".join(filter(None, (self.mend, self.elsewhere)))
        return self.kind(f"{error.where or self.path}: {self.called} is damaged: {error.message}; {hint}")

    def write(self, plain: Any) -> None:
        """Replace the record by plain data, as JSON. Raises ``kind``."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, (json.dumps(plain, indent=1) + "\n").encode())
        except OSError as error:
            raise self.not_written(error) from None

    def read(self, limit: int) -> Item:
        """The JSON of at most ``limit`` bytes that it holds. Raises OSError, or ContentError with the line."""
        return parse_json(read_file(self.path, limit), str(self.path)).root


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
        self._shared = shared
        try:
            if shared:
                lifeline.holds(self._file)
        except OSError as error:
            self.close()
            raise record.kind(f"cannot start the process that guards {record}: {error}") from error

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


class LineRecord:
    """A record that grows: a JSON object a line, each on the disk before it counts. It belongs to one process until it
    is closed.

    What is there is never written again. A process that is killed, or a disk that is full, leaves the last line cut off
    at most; it is no line, and the next one takes its place. Any other line that cannot be read is damage, and named.

    Attributes:
        read: every line that was there, with its place.

    Raises ``record.kind`` where it is in use, damaged, or cannot be read or written.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._lock = Lock(record, shared=True)
        self._file = -1
        try:
            self.read, self._end = self._read()
            self._file = os.open(record.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise record.not_written(error) from None
            raise

    def add(self, plain: Mapping[str, Any]) -> None:
        """Write a line; it is on the disk when this returns. Raises ``record.kind`` where it cannot be written; the
        record is then as it was before."""
        data = (json.dumps(plain) + "\n").encode()
        try:
            os.ftruncate(self._file, self._end)
            written = 0
            while written < len(data):  # a disk with less room takes a part, and only then says that it is full
                written += os.pwrite(self._file, data[written:], self._end + written)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise self._record.not_written(error) from None
        self._end += len(data)

    def close(self) -> None:
        """Free it for others. May be called more than once."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._lock.close()

    def _read(self) -> tuple[Sequence[Item], int]:
        """Every whole line, and the number of bytes of them all."""
        path = self._record.path
        try:
            with open_file(path) as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return (), 0
        except OSError as error:
            raise self._record.kind(f"cannot read {self._record}: {error.strerror}; {self._record.elsewhere}") from None
        try:
            if len(data) > MAX_BYTES:
                raise ContentError(f"it is larger than {MAX_BYTES >> 20} MiB", Where(str(path)))
            whole = data[: data.rfind(b"\n") + 1]
            lines = whole.split(b"\n")[:-1]
            return [parse_json(line, str(path), number).root for number, line in enumerate(lines, 1)], len(whole)
        except ContentError as error:
            raise self._record.damaged(error) from None

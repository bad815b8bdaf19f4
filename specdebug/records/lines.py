"""A record that grows: a JSON object a line, each on the disk before it counts, under a lock.

What is there is never written again. A process that is killed, or a disk that is full, leaves the last line cut off at
most; it is no line, and the next one takes its place. Any other line that cannot be read is damage, and named.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from specdebug.base.errors import ContentError, Where
from specdebug.base.files import open_file
from specdebug.base.schema import Item
from specdebug.base.yamlio import parse_json
from specdebug.records.lock import Lock
from specdebug.records.record import Record

MAX_BYTES = 64 << 20


class LineRecord:
    """The lines of a record. It belongs to one process until it is closed.

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
            self._file = self._open()
        except BaseException:
            self.close()
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

    def _open(self) -> int:
        try:
            return os.open(self._record.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._record.not_written(error) from None

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

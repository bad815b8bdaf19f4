"""The log of a server that was started here: its last line, the failures that it names, and how long it may get."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdebug.base.errors import one_line
from specdebug.logs.rule import Strength
from specdebug.logs.scan import Scan, last_words, scan_bytes

TAIL_BYTES = 8192
WORDS_BYTES = 1 << 20
"""The end of a log, in which what the server died of is looked for."""
_PORT_TAKEN = re.compile(
    rb"address already in use|\berrno 98\b|\bport \d+ (?:is )?(?:already )?(?:in use|not available|occupied)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LogRoom:
    """How long a log may get: of one beyond ``most`` bytes the first ``head`` and the last ``tail`` are kept."""

    most: int = 256 << 20
    head: int = 8 << 20
    tail: int = 64 << 20


class ServerLog:
    """A file to whose end a server writes. ``begun``: bytes before the run."""

    def __init__(self, path: Path, room: LogRoom | None = None) -> None:
        self.path = path
        self._room = room or LogRoom()
        self._read = self.begun = 0

    def last_line(self, without: str = "") -> str:
        """The last line that is not blank and does not hold ``without``, fit for one line of a terminal; empty where
        there is none."""
        lines = self._end(TAIL_BYTES).decode("utf-8", "replace").splitlines()
        fitting = (line for line in reversed(lines) if line.strip() and not (without and without in line))
        return one_line(next(fitting, ""), 160)

    def last_words(self) -> str:
        """The line that says what ended the server, fit for one line of a terminal; empty of an empty log."""
        return one_line(last_words(self._end(WORDS_BYTES).decode("utf-8", "replace")), 240)

    def port_taken(self) -> bool:
        """Return True if the server could not have its port."""
        return _PORT_TAKEN.search(self._end(WORDS_BYTES)) is not None

    def cut(self) -> bool:
        """Take out the middle of a log that has become too long, and return True if it had. What the server writes at
        that moment may be lost; where nothing can be written, all stays as it is."""
        room, size = self._room, self._size()
        if size <= room.most:
            return False
        try:
            file = os.open(self.path, os.O_RDWR | os.O_APPEND)
        except OSError:
            return False
        try:
            tail = os.pread(file, room.tail, size - room.tail)
            tail = tail[tail.find(b"\n") + 1 :]
            mark = f"\nspecdebug left out {size - room.head - len(tail)} bytes of this log here\n".encode()
            os.ftruncate(file, room.head)
            os.write(file, mark + tail)
        except OSError:
            return False
        finally:
            os.close(file)
        self._read, self.begun = (
            place if place <= room.head else room.head + len(mark) + max(0, place - (size - len(tail)))
            for place in (self._read, self.begun)
        )
        return True

    def begin(self) -> None:
        """Take in that a run begins: what the server said before, such as an exception that it has handled while it
        started, is none of the run's."""
        self.begun = self._size()

    def scan_run(self) -> Scan:
        """All that it says of the run."""
        return scan_bytes(self._bytes(min(self.begun, self._size())), settings=False)

    def scan(self) -> Scan:
        """All that it says."""
        return scan_bytes(self._bytes(0), settings=False)

    def findings(self) -> Sequence[tuple[str, str]]:
        """Failures named by whole lines that came since the last call: the signature, and the line. Exceptions are
        none, for a server may well have handled them."""
        size = self._size()
        if size < self._read:  # the server's owner has cut it
            self._read = min(self._room.head, size)
        new = self._bytes(self._read) if size > self._read else b""
        whole = new[: new.rfind(b"\n") + 1]
        if not whole:
            return ()
        self._read += len(whole)
        ranked = scan_bytes(whole, settings=False).ranked()
        return [(found.signature, found.text) for found in ranked if found.strength <= Strength.DEATH]

    def _size(self) -> int:
        try:
            return os.path.getsize(self.path)
        except OSError:
            return 0

    def _end(self, most: int) -> bytes:
        return self._bytes(max(0, self._size() - most))

    def _bytes(self, start: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(start)
                return file.read()
        except OSError:
            return b""

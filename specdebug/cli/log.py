"""The log of a server: lines for one file descriptor, written by a thread of their own.

A reader who stops reading (a pager, a full pipe) stops that thread and nothing else: what has no room is dropped, and
how much that was is said once there is room again. Text of clients is among the lines, so control characters come out
as escapes.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator

from specdebug.report.foreign import shown, shown_lines

ROOM_BYTES = 1 << 20
"""Bytes that wait to be written at most."""
LINE_CHARS = 4000
"""Characters of one line at most; the rest is cut off."""
CLOSE_S = 1.0
"""Seconds that the last lines may take to be read."""


class BoundedLog:
    """A log on file descriptor ``fd``, until it is closed."""

    def __init__(self, fd: int, room: int = ROOM_BYTES) -> None:
        self._fd = fd
        self._room = room
        self._waiting: deque[bytes] = deque()
        self._bytes = self._dropped = 0
        self._closed = False
        self._news = threading.Condition()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._thread = threading.Thread(target=self._write, name="server log", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Write lines, each with the time."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        for line in text.splitlines():
            cut = line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}..."
            self._add(f"[{now}] {shown(cut)}\n")

    def pass_on(self, data: bytes) -> None:
        """Write what the engine printed, without a time."""
        self._add(shown_lines(self._decoder.decode(data)))

    @contextlib.contextmanager
    def of_loggers(self) -> Iterator[None]:
        """Take in what this process's loggers say, those of the HTTP server among them."""
        handler = _Records(self)
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)

    def close(self) -> None:
        """Write what waits. Where it is not read, the descriptor is given up, lest a last word of this process wait
        for that reader for ever."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._fd)
            os.close(null)

    def _add(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        with self._news:
            if self._bytes + len(data) > self._room:
                self._dropped += 1
                return
            if self._dropped:
                note = f"[{self._dropped} lines are missing here: they were not read in time]\n".encode()
                data, self._dropped = note + data, 0
            self._waiting.append(data)
            self._bytes += len(data)
            self._news.notify()

    def _write(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                data = memoryview(self._waiting.popleft())
            size = len(data)
            with contextlib.suppress(OSError):  # the reader is gone, or the disk is full: there is nowhere to say so
                while data:
                    data = data[os.write(self._fd, data) :]
            with self._news:
                self._bytes -= size


class _Records(logging.Handler):
    """Hands what a logger says to a log."""

    def __init__(self, log: BoundedLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.say(f"{record.levelname}: {self.format(record)}")

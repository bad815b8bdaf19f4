"""Messages between the parent, the fork server and the workers.

Requests are a header (tag and length) and a pickled payload, with descriptors; replies and events are JSON lines, for
they come from processes that may be dying: half a line is dropped, and a corrupt worker cannot make the parent
execute anything.
"""

import json
import math
import os
import pickle
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from specdebug.workers.machine_failure import MachineFailed, MachineFailure

_HEADER = struct.Struct("!cQ")

PREPARE = b"P"
JOB = b"J"
SIGNAL = b"S"
ASK = b"A"


class Sink(Protocol):
    """Where a worker's target reports what happens, as it happens."""

    def emit(self, event: str, **fields: Any) -> None:
        """Report one event. It reaches the parent even if the process dies the moment after."""


class PipeSink:
    """Writes each event as one JSON line straight to the file descriptor ``fd`` (no buffer to lose in a crash)."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def emit(self, event: str, **fields: Any) -> None:
        """Report one event. Raises BrokenPipeError when the parent is gone."""
        data = memoryview(encode({"event": event, **fields}))
        while data:
            data = data[os.write(self._fd, data) :]


def encode(message: Mapping[str, Any]) -> bytes:
    """Return one event as the line of JSON that travels; numbers that are not finite become text."""
    try:
        line = _dumps(message)
    except ValueError:  # a NaN or an infinity, for which JSON has no word
        line = _dumps(_finite(message))
    return line.encode("ascii") + b"\n"


def _dumps(message: Mapping[str, Any]) -> str:
    return json.dumps(message, separators=(",", ":"), default=_plain, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return the value with every non-finite number as text: ``"nan"``, ``"inf"``, ``"-inf"``."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """Return what JSON does not know in a form that it does: numpy and torch scalars as such, the rest as text."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


class LineReader:
    """Splits a byte stream into JSON lines; keeps an unfinished tail for later and drops what is not JSON."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the objects completed by ``data``."""
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:  # half a line of a killed worker, or bytes a broken library wrote to the pipe
                continue
            if isinstance(value, dict):
                yield value


def pipes(count: int) -> list[tuple[int, int]]:
    """Return pipes, each its end to read from and its end to write to. Raises MachineFailed when this process or the
    system has no descriptor left; none is then left open."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            made.append(os.pipe())
    except OSError as error:
        for fd in (end for pair in made for end in pair):
            os.close(fd)
        raise MachineFailed(MachineFailure("descriptors", f"no pipe for a worker: {error}")) from error
    return made


def send(sock: socket.socket, tag: bytes, payload: Any, fds: tuple[int, ...] = ()) -> None:
    """Send one request. The descriptors travel with the header; the receiver gets duplicates."""
    body = pickle.dumps(payload)
    header = _HEADER.pack(tag, len(body))
    if fds:
        socket.send_fds(sock, [header], list(fds))
    else:
        sock.sendall(header)
    sock.sendall(body)


def receive(sock: socket.socket) -> tuple[bytes, Any, list[int]] | None:
    """Read one request: tag, payload, descriptors. None when the other side has closed."""
    start, fds, _flags, _address = socket.recv_fds(sock, _HEADER.size, 2)
    header = _filled(sock, start, _HEADER.size) if start else None
    if header is None:
        return None
    tag, size = _HEADER.unpack(header)
    body = _filled(sock, b"", size)
    return None if body is None else (tag, pickle.loads(body), list(fds))


def _filled(sock: socket.socket, start: bytes, size: int) -> bytes | None:
    """Read on from ``start`` until there are ``size`` bytes; None when the other side has closed."""
    data = bytearray(start)
    while len(data) < size:
        more = sock.recv(min(size - len(data), 1 << 20))
        if not more:
            return None
        data += more
    return bytes(data)

"""A disk without room: what is written meets its end after so many bytes."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def full(monkeypatch: pytest.MonkeyPatch, room: int = 0) -> Iterator[None]:
    """Let ``os.pwrite`` take so many bytes more and then fail as on a full disk; nothing reaches the disk at all."""
    write, left = os.pwrite, room

    def pwrite(file: int, data: bytes, offset: int) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(file, data[:left], offset)
        left -= written
        return written

    def fsync(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", pwrite)
        patched.setattr(os, "fsync", fsync)
        yield

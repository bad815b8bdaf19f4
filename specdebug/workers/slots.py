"""Slots of what few runs may use at a time, over all pools and processes of a user.

A slot is a locked file: the kernel frees it when the process that holds it ends, however it ends.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specdebug.base.files import cache_folder


@dataclass(frozen=True)
class Slots:
    """``most`` slots of one thing, whose ``name`` is unique among those of its ``kind``."""

    kind: str
    name: str
    most: int

    def take(self) -> int | None:
        """Return a descriptor that holds a slot until it is closed, or None while all are taken. Raises OSError when no
        file can be opened."""
        name = re.sub(r"[^A-Za-z0-9-]", "_", self.name)
        for number in range(self.most):
            file = slot_folder(self.kind) / f"{name}.{number}"
            slot = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
            with suppress(BlockingIOError):
                fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return slot
            os.close(slot)
        return None


@functools.cache
def slot_folder(kind: str) -> Path:
    """Return the folder of this user's slots of a kind; one of this process alone where the user's cache cannot be
    written."""
    try:
        folder = cache_folder(kind)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix=f"specdebug-{kind}-"))

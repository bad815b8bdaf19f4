"""Slots of what few runs may use at a time, over all pools and processes of a user: a server, and a GPU at risk.

A slot is a locked file: the kernel frees it when the process that holds it ends, however it ends.

A context that dies of an assertion or an illegal address is torn down by the driver. With sixteen such deaths at a
time an H100 was gone for every process ("No CUDA GPUs are available"); with four it never was (2026-11-25). So an arm
that reverts a fix or injects faults on a GPU needs one of a few slots of that GPU. The parent holds it, until its
worker has been reaped and so its context is gone.
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

from specdebug.base.errors import SpecDebugError
from specdebug.base.files import cache_folder

VARIABLE = "SPECDEBUG_GPU_AT_RISK"
AT_RISK = 4
"""Arms that may destroy a context of one GPU at a time, unless the variable says otherwise."""


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


def at_risk_limit() -> int:
    """Return how many arms may be at risk on one GPU at a time. Raises SpecDebugError where the variable is none."""
    told = os.environ.get(VARIABLE, "").strip()
    if not told:
        return AT_RISK
    if not re.fullmatch(r"[1-9][0-9]{0,3}", told):
        raise SpecDebugError(f"{VARIABLE} must be a whole number from 1 to 9999, not {told!r}")
    return int(told)


def slots_at_risk(device: str) -> Slots:
    """Return the slots of a device, ``cuda`` or ``cuda:N``. Raises SpecDebugError."""
    return Slots("gpu", _physical(device), at_risk_limit())


def _physical(device: str) -> str:
    """Return the name of the GPU that ``CUDA_VISIBLE_DEVICES`` puts in this place."""
    index = int(device.partition(":")[2] or 0)
    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    return visible[index] if index < len(visible) else str(index)

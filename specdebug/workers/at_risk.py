"""A bound on the arms that may destroy a GPU's context at a time, over all pools and processes of a user.

A context that dies of an assertion or an illegal address is torn down by the driver. With sixteen such deaths at a
time an H100 was gone for every process ("No CUDA GPUs are available"); with four it never was (2026-11-25). So an arm
that reverts a fix or injects faults on a GPU needs one of a few slots of that GPU. A slot is a locked file: the kernel
frees it when the process that holds it ends, however it ends. The parent holds it, until its worker has been reaped and
so its context is gone.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from specdebug.errors import SpecDebugError

VARIABLE = "SPECDEBUG_GPU_AT_RISK"
AT_RISK = 4
"""Arms that may destroy a context of one GPU at a time, unless the variable says otherwise."""


class AtRiskError(SpecDebugError):
    """The variable is no whole number from 1."""


def at_risk_limit() -> int:
    """Return how many arms may be at risk on one GPU at a time. Raises AtRiskError."""
    told = os.environ.get(VARIABLE, "").strip()
    if not told:
        return AT_RISK
    if not re.fullmatch(r"[1-9][0-9]{0,3}", told):
        raise AtRiskError(f"{VARIABLE} must be a whole number from 1 to 9999, not {told!r}")
    return int(told)


def take(device: str) -> int | None:
    """Return a descriptor that holds a slot of a device until it is closed, or None while all are taken.

    ``device``: ``cuda`` or ``cuda:N``. Raises AtRiskError; OSError when no file can be opened.
    """
    for number in range(at_risk_limit()):
        slot = os.open(slot_folder() / f"{_physical(device)}.{number}", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return slot
        os.close(slot)
    return None


@functools.cache
def slot_folder() -> Path:
    """Return the folder of this user's slots; one of this process alone where the user's cache cannot be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = cache / "specdebug" / "gpu"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="specdebug-gpu-"))


def _physical(device: str) -> str:
    """Return the name of the GPU that ``CUDA_VISIBLE_DEVICES`` puts in this place, fit for a file's name."""
    index = int(device.partition(":")[2] or 0)
    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    name = visible[index] if index < len(visible) else str(index)
    return re.sub(r"[^A-Za-z0-9-]", "_", name)

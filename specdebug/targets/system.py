"""What the operating system says of this machine and of a process."""

from __future__ import annotations

import os
from collections.abc import Callable


def rss_mb(pid: int) -> float:
    """Resident memory of a process in MiB, 0 when it is gone or the system has no /proc."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


def cpu_count() -> int:
    """Cores this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1

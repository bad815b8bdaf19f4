"""Ask the operating system about this machine and about a process."""

import os
import re
from collections.abc import Iterator
from pathlib import Path


def text_of(path: Path) -> str | None:
    """Return the text of a file, None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB, 0 when it is gone or the system has no /proc."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


def processor_s(pid: int) -> float:
    """Return the processor seconds that a process has spent, 0 when it is gone or the system has no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            user, system = stat.read().rpartition(b")")[2].split()[11:13]
            return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def is_gone(pid: int) -> bool:
    """Return True if a process has ended, even if its parent has not taken notice yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return False


def oom_kills() -> int | None:
    """Return how many processes the kernel has killed for lack of memory, in this process's cgroup where that is
    counted, else on the whole machine; None where the system does not say."""
    for path in (*_cgroup_counters(), Path("/proc/vmstat")):
        found = re.search(r"^oom_kill (\d+)$", text_of(path) or "", re.MULTILINE)
        if found is not None:
            return int(found[1])
    return None


def oom_killed_since(before: int | None) -> bool:
    """Return True if the kernel is known to have killed a process since :func:`oom_kills` said ``before``."""
    now = oom_kills()
    return before is not None and now is not None and now > before


def _cgroup_counters() -> Iterator[Path]:
    """Yield files that may count the kernel's kills in this process's cgroup: of version 2, then of version 1."""
    for line in (text_of(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, name = line.split(":", 2)
        if not controllers:
            yield Path("/sys/fs/cgroup", name.lstrip("/"), "memory.events")
        elif "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory", name.lstrip("/"), "memory.oom_control")


def cpu_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""The process that outlives us when we are killed, and ends what we have started; it imports next to nothing.

It reads ``begin KEY``, ``runs KEY PID`` and ``ended KEY`` from a pipe. When that closes, what has not ended is killed
with its group; between ``begin`` and ``runs`` a process is found by the key in its environment.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

KEY_VARIABLE = "SPECDEBUG_STARTED_AS"  # holds the key, in the environment of what is started

_SEARCH_S = 1.0  # seconds to look for a process that has been forked, but may not have its own environment yet
_GONE_S = 10.0  # seconds to wait for what was killed to be gone; a process that holds a device may take its time
LIMIT_S = _SEARCH_S + _GONE_S  # seconds that a reaper takes at most
_PAUSE_S = 0.02


def main() -> int:
    """Listen until the pipe closes, then end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the process that is told to end closes the pipe
    begun: set[str] = set()
    groups: dict[str, int] = {}
    for line in sys.stdin:
        if not line.endswith("\n"):  # killed while it wrote
            break
        what, key, *rest = line.split()
        if what == "begin":
            begun.add(key)
            continue
        begun.discard(key)
        if what == "runs":
            groups[key] = int(rest[0])
        else:
            groups.pop(key, None)
    killed = set(groups.values())
    for group in killed:
        kill_group(group)
    if begun:
        killed |= _search(begun)
    wait_for(killed)
    return 0


def kill_group(group: int) -> None:
    """Kill a process group, if there is one."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS refuses where all members are gone already
        return


def kill_marked(keys: set[str]) -> set[int]:
    """Kill and return the groups of processes that have one of the keys, once over; none is found where there is no
    /proc. What has left the group that it was started in still has the key."""
    if not keys or not os.path.isdir("/proc/self"):
        return set()
    found: set[int] = set()
    wanted = {f"{KEY_VARIABLE}={key}".encode() for key in keys}
    for pid, environment in _of_every_process("environ"):
        if not wanted.isdisjoint(environment.split(b"\0")):
            with contextlib.suppress(OSError):  # it is gone
                group = os.getpgid(pid)
                kill_group(group)
                found.add(group)
    return found


def _of_every_process(what: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number of each process, and what this file of it in /proc says; not of those of other users."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/{what}", "rb") as file:
            yield int(name), file.read()


def _search(keys: set[str]) -> set[int]:
    """Do so until no process can appear any more."""
    found: set[int] = set()
    until = time.monotonic() + _SEARCH_S
    while os.path.isdir("/proc/self") and time.monotonic() < until:
        found |= kill_marked(keys)
        time.sleep(_PAUSE_S)
    return found


def wait_for(groups: set[int]) -> None:
    """Wait until nothing of the groups is left but what its parent has not taken notice of."""
    until = time.monotonic() + _GONE_S
    while (groups := {group for group in groups if _lives(group)}) and time.monotonic() < until:
        time.sleep(_PAUSE_S)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    if not os.path.isdir("/proc/self"):
        return True
    for _, stat in _of_every_process("stat"):
        state, _, its_group, *rest = stat.rpartition(b")")[2].split()
        threads = int(rest[14])  # the first one may be over while others still end
        if int(its_group) == group and (state not in (b"Z", b"X") or threads > 1):
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())

"""The process that outlives us when we are killed, and ends what we have started.

Run as a script that imports next to nothing (see ``lifeline.py``, its other side). It reads lines from a pipe: ``begin
KEY``, ``runs KEY PID`` and ``ended KEY``. The pipe closes when the process that writes it is gone, however it ended;
what has not ended by then is killed with its whole process group.

Between ``begin`` and ``runs`` the process may exist although nobody has said its number. It has its key in its
environment, where Linux lets it be found.
"""

from __future__ import annotations

import os
import signal
import sys
import time

KEY_VARIABLE = "SPECDEBUG_STARTED_AS"
"""Holds the key, in the environment of what is started."""

_SEARCH_S = 1.0
"""How long to look for a process that has been forked, but may not have its own environment yet."""
_PAUSE_S = 0.02


def main() -> int:
    """Listen until the pipe closes, then end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever is told to end closes the pipe
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
    for group in groups.values():
        kill_group(group)
    if begun:
        _search(begun)
    return 0


def kill_group(group: int) -> None:
    """Kill a process group, if there is one."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS refuses where all members are gone already
        return


def _search(keys: set[str]) -> None:
    """Kill the groups of the processes that have one of the keys; nothing is found where there is no /proc."""
    wanted = [f"{KEY_VARIABLE}={key}".encode() for key in keys]
    until = time.monotonic() + _SEARCH_S
    while os.path.isdir("/proc/self") and time.monotonic() < until:
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    settings = file.read().split(b"\0")
                if any(one in settings for one in wanted):
                    kill_group(os.getpgid(int(name)))
            except OSError:  # gone, or another user's
                continue
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())

"""Commands that start the fake server, and whether a process is there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from specdebug.targets.launch.process import StartCommand

SCRIPT = Path(__file__).with_name("fake_process.py")


def words(*more: str) -> tuple[str, ...]:
    return (sys.executable, str(SCRIPT), "{port}", *more)


def command(*more: str) -> StartCommand:
    return StartCommand(words(*more), dict(os.environ))


def lives(pid: int) -> bool:
    """Return True unless the process is gone, or only waits for its parent to notice."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")

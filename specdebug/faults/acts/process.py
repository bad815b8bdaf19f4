"""The end of the worker: killed, hanging, out of memory."""

from __future__ import annotations

import os
import signal
import time

from specdebug.faults.shot import Shot, fault_class

FAMILY = "process"


@fault_class(FAMILY, "before", "kills", addressed_by=())
def worker_killed(shot: Shot) -> None:
    """The worker gets SIGKILL."""
    shot.note("process", (), "running", "SIGKILL")
    os.kill(os.getpid(), signal.SIGKILL)


@fault_class(FAMILY, "before", "kills", addressed_by=())
def worker_hangs(shot: Shot) -> None:
    """The worker never comes back from this step."""
    shot.note("process", (), "running", "asleep")
    while True:
        time.sleep(3600)


@fault_class(FAMILY, "before", "kills", addressed_by=())
def worker_out_of_memory(shot: Shot) -> None:
    """The worker takes memory until it is stopped."""
    shot.note("process", (), "running", "allocating")
    taken: list[bytearray] = []
    while True:
        taken.append(bytearray(b"\x01") * (16 << 20))

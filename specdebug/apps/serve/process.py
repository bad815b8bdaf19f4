"""The front's side of the engine's process: the order by which it is started, its end, and how that came."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdebug.workers.child import DUMP_SIGNAL, OwnChild
from specdebug.workers.job import EndKind, WorkerEnd
from specdebug.workers.machine_failure import MachineFailure
from specdebug.workers.system import oom_killed_since, oom_kills
from specdebug.workers.wire import JOB, send

if TYPE_CHECKING:
    from specdebug.faults.model import Fault
    from specdebug.patching.toggles import Toggle
    from specdebug.scenario.packs import ProbePack

GONE_S = 1.0
"""Seconds that the engine's process may take to be gone once its socket is closed."""
_BOOT = """
from specdebug.apps.serve.engine_process import main
from specdebug.workers.device import leave_now
leave_now(main(sys.argv[1:]))
"""
"""It leaves at once: to tear an engine down takes seconds, and requests wait for word of its end."""


@dataclass(frozen=True)
class Launch:
    """The engine to start. ``options``: its own. ``mode``: of every probe, over the packs' own (record or assert)."""

    options: Mapping[str, Any]
    toggles: tuple[Toggle, ...] = ()
    packs: tuple[ProbePack, ...] = ()
    faults: tuple[Fault, ...] = ()
    mode: str | None = None

    @property
    def seed(self) -> int:
        return int(self.options.get("seed", 0))


class EngineProcess(OwnChild):
    """The engine's process; what it says, and its end, come from its channel."""

    def __init__(self, launch: Launch) -> None:
        """Raises WorkerStartError, or MachineFailed when the system has no process or no descriptor left to give."""
        super().__init__(_BOOT, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))
        self._began = time.monotonic()
        self._oom_kills = oom_kills()
        self._killed_for: EndKind | None = None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is gone, which its socket shows
            send(self.channel, JOB, launch)

    def dump(self) -> None:
        """Have it print where it is, even from inside a C loop."""
        self.send_signal(DUMP_SIGNAL)

    def give_up(self) -> None:
        """Kill it and what it started: it hangs."""
        self._killed_for = "timeout"
        self.kill_all()

    def gone(self) -> None:
        """Return once it is gone; one that is not :data:`GONE_S` after its socket closed is killed."""
        if self.ended_within(GONE_S) is None:
            self._killed_for = self._killed_for or "exit"
        self.end()

    def worker_end(self) -> WorkerEnd:
        """How it ended, all that it printed having been read. It may have been the kernel that killed it, for want of
        memory: by the count of its kills since this process began."""
        kind: EndKind = self._killed_for or ("signal" if self.returncode < 0 else "exit")
        lost = None
        if kind == "signal" and self.returncode == -signal.SIGKILL and oom_killed_since(self._oom_kills):
            lost = MachineFailure("memory", "the kernel killed the engine")
        return WorkerEnd(kind, self.returncode, time.monotonic() - self._began, 0.0, self.said, lost)

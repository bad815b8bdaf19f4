"""The front's side of the engine's process: the order by which it is started, its end, and how that came."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdebug.verdict.deaths import death_by_machine, death_of, explained
from specdebug.verdict.outcome import Violation, merge_violations
from specdebug.workers.child import DUMP_SIGNAL, OwnChild
from specdebug.workers.job import EndKind, WorkerEnd
from specdebug.workers.machine_failure import TOLD, MachineFailure
from specdebug.workers.system import oom_killed_since, oom_kills
from specdebug.workers.wire import JOB, send

if TYPE_CHECKING:
    from specdebug.faults.model import Fault
    from specdebug.patching.toggles import Toggle
    from specdebug.scenario.packs import ProbePack

GONE_S = 1.0  # seconds that the engine's process may take to be gone once its socket is closed
_BOOT = """
from specdebug.apps.serve.engine_loop import main
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
        super().__init__(_BOOT, env={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")})
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


@dataclass(frozen=True)
class EngineFailure:
    """An engine that is gone. ``signature`` is None where it was the machine that failed, or it was told to end."""

    signature: str | None
    step: int | None
    detail: str

    def __str__(self) -> str:
        if self is ENDING:
            return self.detail
        named = "" if self.signature is None else f"fail {self.signature}: "
        return f"the engine has died: {named}{self.detail}"


ENDING = EngineFailure(None, None, "the server is ending")  # the end of an engine that was told to


def failure_of(
    end: WorkerEnd,
    told: Sequence[Violation],
    machine: Mapping[str, Any] | None,
    *,
    step: int,
    stage: str,
    coredump: str | None = None,
) -> EngineFailure:
    """The failure that an engine's end amounts to, with the signature that names it by the rules of every verdict.
    ``told``: violations that it reported before it died; the first in order names the failure, so that a probe's
    finding comes before the crash that followed from it. ``machine``: the machine's failure, if it told of one."""
    if machine is not None:
        return EngineFailure(None, step, f"machine: {TOLD[machine['cause']]}: {machine['line']}")
    found = [explained(each, end.log, step, coredump) for each in told]
    lost = death_by_machine(end)
    if lost is not None and not found:
        return EngineFailure(None, step, lost.reason)
    # One that told why it leaves has an exit status that says no more.
    death = None if found and end.kind == "exit" else death_of(end, step, stage)
    if death is not None:
        found.append(death)
    if not found:
        return EngineFailure("error@worker", step, f"left with exit status {end.status} in stage {stage}")
    first = merge_violations(found)[0]
    after = f"; {death.detail}" if death is not None and first.signature != death.signature else ""
    return EngineFailure(first.signature, first.step, first.detail + after)

"""May another arm start on this device? Not on one that is gone; on one that answers again, yes.

A device that an arm found gone would fail every arm after it in a tenth of a second. So before the next one starts
there, a fresh worker of the same pool takes the device and computes on it. If that succeeds, the run goes on; if not,
no arm is started there any more.
"""

from __future__ import annotations

from typing import Any, Protocol

from specdebug.workers.job import Job, Listener, WorkerEnd
from specdebug.workers.machine_failure import MachineFailure

PROBE = "specdebug.workers.device:answer"
PROBE_S = 60.0
"""Longest that a sound device takes to be made ready for a new process, many times over."""


class Launcher(Protocol):
    """Starts workers one by one, as ``WorkerPool`` does."""

    def launch(self, job: Job) -> None: ...

    def turn(self, listener: Listener) -> None: ...


class DeviceWatch:
    """Stands between a pool and who listens to it: it hears of every job, and keeps its own probes to itself.

    Args:
        pool: runs the probes.
        listener: is told of all other jobs.
    """

    def __init__(self, pool: Launcher, listener: Listener) -> None:
        self._pool = pool
        self._listener = listener
        self._doubts: dict[str, MachineFailure] = {}
        self._gone: dict[str, MachineFailure] = {}
        self._probes: dict[str, _Probe] = {}
        self._probed = 0

    def doubt(self, device: str, failure: MachineFailure) -> None:
        """An arm found ``device`` gone. Nothing is done yet: this may be called from within a turn of the pool."""
        self._doubts.setdefault(device, failure)

    def gone(self, device: str) -> MachineFailure | None:
        """Return why no arm may start on ``device``; None when one may. A device in doubt is probed first, and the pool
        turned meanwhile, so this must not be called from within a turn of it.

        Raises WorkerStartError, or MachineFailed when there can be no worker for the probe.
        """
        while device not in self._gone and device in self._doubts:
            first = self._doubts.pop(device)
            if not self._answers(device):
                self._gone[device] = first
        return self._gone.get(device)

    def _answers(self, device: str) -> bool:
        self._probed += 1
        name = f"probe {self._probed} of {device}"
        probe = self._probes[name] = _Probe()
        self._pool.launch(Job(name, PROBE, device, PROBE_S, uses_gpu=True))
        while not probe.ended:
            self._pool.turn(self)
        del self._probes[name]
        return probe.answered

    def started(self, job: Job) -> None:
        """Pass it on, unless it is a probe's."""
        if job.name not in self._probes:
            self._listener.started(job)

    def event(self, job: Job, event: dict[str, Any]) -> None:
        """Pass it on, unless it is a probe's."""
        if job.name not in self._probes:
            self._listener.event(job, event)
        elif event.get("event") == "answers":
            self._probes[job.name].answered = True

    def ended(self, job: Job, end: WorkerEnd) -> None:
        """Pass it on, unless it is a probe's."""
        if job.name not in self._probes:
            self._listener.ended(job, end)
        else:
            self._probes[job.name].ended = True

    def waiting(self) -> None:
        """Pass it on."""
        self._listener.waiting()


class _Probe:
    def __init__(self) -> None:
        self.answered = False
        self.ended = False

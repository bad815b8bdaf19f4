"""Keep arms off a device that is gone.

A device that an arm found gone would fail every arm after it in a tenth of a second. So before the next one starts
there, a fresh worker of the same pool computes on the device. If that fails, no arm is started there any more.
"""

from __future__ import annotations

from typing import Any

from specdebug.workers.job import Job, Listener, WorkerEnd
from specdebug.workers.machine_failure import MachineFailure
from specdebug.workers.pool import WorkerPool

PROBE = "specdebug.workers.device:answer"
PROBE_S = 60.0
"""The limit of a probe, many times what a sound device takes to be made ready for a new process."""


class DeviceWatch:
    """A listener between a pool, which runs its probes, and another, which hears of all other jobs."""

    def __init__(self, pool: WorkerPool, listener: Listener) -> None:
        self._pool = pool
        self._listener = listener
        self._doubts: dict[str, MachineFailure] = {}
        self._gone: dict[str, MachineFailure] = {}
        self._probed = 0
        self._probe = ""
        self._heard: set[str] = set()

    def doubt(self, device: str, failure: MachineFailure) -> None:
        """Note that an arm found ``device`` gone. This may be called from within a turn of the pool."""
        self._doubts.setdefault(device, failure)

    def gone(self, device: str) -> MachineFailure | None:
        """Return the failure that keeps arms off ``device``, None if one may start.

        A device in doubt is probed first, by turning the pool: do not call this from within a turn of it. Raises
        WorkerStartError, or MachineFailed when there can be no worker for the probe.
        """
        while device not in self._gone and device in self._doubts:
            first = self._doubts.pop(device)
            if not self._answers(device):
                self._gone[device] = first
        return self._gone.get(device)

    def _answers(self, device: str) -> bool:
        self._probed += 1
        self._probe, self._heard = f"probe {self._probed} of {device}", set()
        self._pool.launch(Job(self._probe, PROBE, device, PROBE_S, uses_gpu=True))
        while "ended" not in self._heard:
            self._pool.turn(self)
        return "answers" in self._heard

    def started(self, job: Job) -> None:
        if job.name != self._probe:
            self._listener.started(job)

    def event(self, job: Job, event: dict[str, Any]) -> None:
        if job.name != self._probe:
            self._listener.event(job, event)
        elif event.get("event") == "answers":
            self._heard.add("answers")

    def ended(self, job: Job, end: WorkerEnd) -> None:
        if job.name != self._probe:
            self._listener.ended(job, end)
        else:
            self._heard.add("ended")

    def waiting(self) -> None:
        self._listener.waiting()

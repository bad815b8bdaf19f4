"""When a device is probed, what of that others hear, and what the answer is worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specdebug.campaign.loops.replay import PROBE, DeviceWatch
from specdebug.workers.job import Job, Listener, WorkerEnd
from specdebug.workers.machine_failure import MachineFailure

LOST = MachineFailure("device", "No CUDA GPUs are available")
END = WorkerEnd("done", 0, 0.1, 1.0, "")


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def started(self, job: Job) -> None:
        self.told.append(f"{job.name} started")

    def event(self, job: Job, event: dict[str, Any]) -> None:
        self.told.append(f"{job.name} {event['event']}")

    def ended(self, job: Job, end: WorkerEnd) -> None:
        self.told.append(f"{job.name} ended")

    def waiting(self) -> None:
        self.told.append("waiting")


class Pool:
    """Each turn brings one report of the probe under way; ``answers`` says which probes answer."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.launched: list[Job] = []
        self.meanwhile: Callable[[Listener], None] = lambda listener: None
        self._reports: list[Callable[[Listener], None]] = []

    def launch(self, job: Job) -> None:
        self.launched.append(job)
        self._reports = [lambda on: on.started(job), self.meanwhile, lambda on: on.ended(job, END)]
        if self.answers.pop(0):
            self._reports.insert(1, lambda on: on.event(job, {"event": "answers"}))

    def turn(self, listener: Listener) -> None:
        self._reports.pop(0)(listener)
        listener.waiting()


def test_a_device_that_nobody_doubts_is_not_probed() -> None:
    watch = DeviceWatch(pool := Pool(), Heard())
    assert watch.gone("cuda") is None
    watch.doubt("cuda:1", LOST)
    assert watch.gone("cuda") is None
    assert pool.launched == []


@pytest.mark.parametrize(("answers", "gone"), [(True, None), (False, LOST)])
def test_a_doubt_is_settled_by_one_probe(answers: bool, gone: MachineFailure | None) -> None:
    watch = DeviceWatch(pool := Pool(answers), Heard())
    watch.doubt("cuda", LOST)
    watch.doubt("cuda", MachineFailure("device", "the same, of another arm"))
    assert [watch.gone("cuda") for _ in range(3)] == [gone] * 3
    assert [(job.target, job.payload, job.uses_gpu) for job in pool.launched] == [(PROBE, "cuda", True)]


def test_others_hear_of_their_own_jobs_and_of_no_probe() -> None:
    watch = DeviceWatch(pool := Pool(True), heard := Heard())
    arm = Job("arm", "t:f", None)
    pool.meanwhile = lambda listener: (listener.event(arm, {"event": "step"}), listener.ended(arm, END))[0]
    watch.started(arm)
    watch.doubt("cuda", LOST)
    assert watch.gone("cuda") is None
    assert [line for line in heard.told if line != "waiting"] == ["arm started", "arm step", "arm ended"]
    assert "waiting" in heard.told


def test_a_loss_while_the_probe_runs_is_another_doubt() -> None:
    watch = DeviceWatch(pool := Pool(True, False), Heard())
    again = MachineFailure("device", "again")
    losses = [again]
    pool.meanwhile = lambda listener: watch.doubt("cuda", losses.pop()) if losses else None
    watch.doubt("cuda", LOST)
    assert watch.gone("cuda") == again
    assert len(pool.launched) == 2
    assert len({job.name for job in pool.launched}) == 2

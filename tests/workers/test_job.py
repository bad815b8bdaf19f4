"""The clock and the memory limit of one worker."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdebug.base.errors import SpecDebugError
from specdebug.workers.job import (
    AT_RISK,
    BUSY_LIMIT_S,
    GPU_MEMORY_MB,
    VARIABLE,
    Job,
    Worker,
    at_risk_limit,
    slot_folder,
    slots_at_risk,
)
from specdebug.workers.pool import WorkerPool
from tests.workers.test_pool import VICTIMS, Record


def test_a_worker_on_a_gpu_may_hold_a_context_on_top_of_its_limit() -> None:
    plain, on_gpu = (Worker(Job("a", "m:f", None, memory_mb=500, uses_gpu=gpu), 0, 0) for gpu in (False, True))
    assert plain.memory_limit_mb == 500
    assert on_gpu.memory_limit_mb == 500 + GPU_MEMORY_MB


def worker_at(*reports: tuple[str, float], timeout_s: float = 100.0) -> Worker:
    """A worker that has started at 0 and reported these events, each at its time in seconds."""
    worker = Worker(Job("a", "m:f", None, timeout_s=timeout_s), 0, 0)
    worker.start(1, 0.0)
    for event, at in reports:
        worker.hear({"event": event}, at)
    return worker


def test_a_worker_that_reports_nothing_for_far_longer_than_ever_stands_still() -> None:
    slow = worker_at(("stage", 30.0), ("step", 40.0), ("step", 48.0), ("step", 56.0))
    assert not slow.stands_still(100.0), "a step may take eight seconds, so twenty more are no sign"
    quick = worker_at(("stage", 30.0), ("step", 40.0), ("step", 40.1), ("step", 40.2))
    assert not quick.stands_still(44.0)
    assert quick.stands_still(46.0)
    starting = worker_at(("stage", 30.0))
    assert not starting.stands_still(79.0)
    assert starting.stands_still(80.0), "half of its time in one stage, and no step"
    assert not worker_at(timeout_s=2.0).stands_still(3.0), "loading takes longer than that"


def test_at_its_deadline_a_worker_that_has_made_a_step_may_show_that_it_goes_on() -> None:
    worker = worker_at(("step", 98.0), ("step", 98.1))
    assert not worker.is_over(99.9)
    assert not worker.is_over(100.5), "nothing for 2.4 s tells neither"
    assert worker.is_over(104.0), "by now it stands still"
    worker.hear({"event": "step"}, 101.0)
    assert worker.is_over(101.0)
    assert not worker.stands_still(101.0)
    assert worker_at(("step", 60.0), ("step", 90.0)).is_over(130.0), "nobody waits for ever"
    assert worker_at(("stage", 99.0)).is_over(100.0)


def test_what_a_worker_is_busy_with_does_not_count_as_hanging() -> None:
    worker = Worker(Job("a", "m:f", None), 0, 0, deadline=100.0)
    worker.hear({"event": "progress", "text": "compiling a kernel"}, 90.0)
    assert worker.deadline_at(110.0) == 120.0
    worker.hear({"event": "progress", "text": ""}, 130.0)
    assert worker.deadline_at(500.0) == 140.0
    worker.hear({"event": "progress", "text": "capturing graphs"}, 135.0)
    worker.hear({"event": "step"}, 136.0)
    assert worker.deadline_at(500.0) == 141.0
    worker.hear({"event": "progress", "text": "waiting for a lock that nobody gives"}, 140.0)
    assert worker.deadline_at(10_000.0) == 141.0 + BUSY_LIMIT_S


HOLDER = """
import sys
from specdebug.workers.job import slots_at_risk
slots = slots_at_risk("cuda")
print(slots.take() is not None, slots.take() is not None, slots.take() is not None, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    slot_folder.cache_clear()
    yield
    slot_folder.cache_clear()


def taken(device: str) -> list[int]:
    """Take all slots of a device that are free."""
    return list(iter(lambda: slots_at_risk(device).take(), None))


@pytest.mark.parametrize("told", ["0", "-1", "four", "1.5", "99999"])
def test_a_bound_that_is_no_number_is_named(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, told)
    with pytest.raises(SpecDebugError, match=f"{VARIABLE} must be a whole number from 1 to 9999, not '{told}'"):
        at_risk_limit()


def test_slots_of_another_process_count_and_are_free_when_it_is_killed() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline().split() == ["True"] * 3
    ours = taken("cuda")
    assert len(ours) == AT_RISK - 3
    holder.kill()
    holder.wait()
    assert len(ours + taken("cuda")) == AT_RISK


def test_without_a_cache_the_bound_holds_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    slot_folder.cache_clear()
    assert len(taken("cuda")) == AT_RISK
    assert slot_folder("gpu").stat().st_mode & 0o077 == 0


class Most(Record):
    """Counts the jobs at risk, or with a server, that run at a time."""

    most = 0

    def started(self, job: Job) -> None:
        super().started(job)
        self.most = max(self.most, sum(name.startswith(("risky", "asks")) for name in self.known - set(self.ends)))


def test_a_pool_holds_jobs_at_risk_until_there_is_a_slot_and_runs_the_others_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    jobs = [Job(f"risky {n}", f"{VICTIMS}:obey", n, at_risk="cuda") for n in range(9)]
    jobs += [Job(f"sound {n}", f"{VICTIMS}:obey", n) for n in range(4)]
    with WorkerPool(6, preload=()) as pool:
        pool.run(jobs, record := Most())
        assert pool.running == 0
    assert len(record.ends) == len(jobs)
    assert 1 <= record.most <= 2
    assert len(taken("cuda")) == 2


def test_a_job_launched_by_itself_begins_in_a_turn_once_another_pool_s_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    held = slots_at_risk("cuda").take()
    assert held is not None
    with WorkerPool(1, preload=()) as pool:
        pool.launch(Job("risky", f"{VICTIMS}:obey", 1, at_risk="cuda"))
        pool.turn(record := Record())
        assert (pool.running, record.known) == (1, set())
        os.close(held)
        while pool.running:
            pool.turn(record)
    assert list(record.ends) == ["risky"]


def test_jobs_held_are_dropped_when_the_pool_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    assert slots_at_risk("cuda").take() is not None
    with WorkerPool(1, preload=()) as pool:
        pool.launch(Job("risky", f"{VICTIMS}:obey", 1, at_risk="cuda"))
    assert pool.running == 0


def test_a_server_is_used_by_one_job_at_a_time_and_others_run_meanwhile() -> None:
    jobs = [Job(f"asks {n}", f"{VICTIMS}:obey", n, server="localhost:30000") for n in range(5)]
    jobs += [Job(f"beside {n}", f"{VICTIMS}:obey", n) for n in range(3)]
    jobs += [Job("another", f"{VICTIMS}:obey", 1, server="localhost:30001")]
    with WorkerPool(4, preload=()) as pool:
        pool.run(jobs, record := Most())
    assert len(record.ends) == len(jobs)
    assert record.most == 1

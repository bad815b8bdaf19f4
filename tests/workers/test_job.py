"""The clock and the memory limit of one worker."""

from __future__ import annotations

from specdebug.workers.job import BUSY_LIMIT_S, GPU_MEMORY_MB, Job, Worker


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

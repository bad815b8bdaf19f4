"""The clock and the memory limit of one worker."""

from __future__ import annotations

from specdebug.workers.job import BUSY_LIMIT_S, GPU_MEMORY_MB, Job, Worker


def test_a_worker_on_a_gpu_may_hold_a_context_on_top_of_its_limit() -> None:
    plain, on_gpu = (Worker(Job("a", "m:f", None, memory_mb=500, uses_gpu=gpu), 0, 0) for gpu in (False, True))
    assert plain.memory_limit_mb == 500
    assert on_gpu.memory_limit_mb == 500 + GPU_MEMORY_MB


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

"""The scheduler's batches, numbered, for those who tell after each what was found in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def follow_batches(begin: Callable[[int], None], tell: Callable[[], None], died: Callable[[], None]) -> None:
    """Call ``begin`` with the number of each batch, from 1 on, and ``tell`` after it was launched and after its results
    were taken; at a failure ``died`` instead.

    A GPU computes behind the scheduler's back, so its death shows in one batch or in the results of the one before.
    """
    from sglang.srt.managers.scheduler import Scheduler

    run, take = Scheduler.run_batch, Scheduler.process_batch_result
    steps = 0

    def telling(call: Callable[[], Any]) -> Any:
        try:
            answer = call()
        except BaseException:
            died()
            raise
        tell()
        return answer

    def run_batch(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal steps
        steps += 1
        begin(steps)
        return telling(lambda: run(self, *args, **named))

    def process_batch_result(self: Any, *args: Any, **named: Any) -> Any:
        return telling(lambda: take(self, *args, **named))

    Scheduler.run_batch, Scheduler.process_batch_result = run_batch, process_batch_result

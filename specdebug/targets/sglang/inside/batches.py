"""The scheduler's batches, numbered, for those who tell after each what was found in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.inside.wrapping import wrap_all
from specdebug.targets.sglang.inside.seats import Seat

_SCHEDULER = "srt.managers.scheduler:Scheduler"
RUN, TAKE = (
    Seat("the scheduler's batches", (f"{_SCHEDULER}.{name}",)) for name in ("run_batch", "process_batch_result")
)
"""The methods that launch a batch and that take its results."""


def follow_batches(
    begin: Callable[[int], None], tell: Callable[[], None], died: Callable[[], None], look: EngineLook
) -> None:
    """Call ``begin`` with the number of each batch, from 1 on, and ``tell`` after it was launched and after its results
    were taken; at a failure ``died`` instead. Raises NoSeat.

    A GPU computes behind the scheduler's back, so its death shows in one batch or in the results of the one before.
    """
    steps = 0

    def telling(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        try:
            answer = call(*args, **named)
        except BaseException:
            died()
            raise
        tell()
        return answer

    def run_batch(call: Callable[..., Any], _: Any, *args: Any, **named: Any) -> Any:
        nonlocal steps
        steps += 1
        begin(steps)
        return telling(call, *args, **named)

    def process_batch_result(call: Callable[..., Any], _: Any, *args: Any, **named: Any) -> Any:
        return telling(call, *args, **named)

    wrap_all(((*RUN.find(), run_batch), (*TAKE.find(), process_batch_result)), look)

"""In a worker of ``costs.py``, which may have an engine's own Python: the seconds of each step of an arm."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from specdebug.run.arm import run_arm
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.run.loop import RunLoop

WARM_UP = 10
"""Steps that are not counted."""


class Timed:
    """Notes when each step of a session begins, and when the last is over."""

    def __init__(self) -> None:
        self.began: list[float] = []

    def building(self) -> None: ...

    def built(self, loop: RunLoop) -> None:
        setattr(loop.session, "advance", self._noted(loop.session.advance))  # noqa: B010 - methods of this one run
        setattr(loop, "settle", self._noted(loop.settle))  # noqa: B010

    def _noted(self, call: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            self.began.append(time.perf_counter())
            return call()

        return noted


def timed(payload: Mapping[str, Any], sink: Sink) -> None:
    """Run an arm in its worker, and tell the seconds of its steps."""
    watch = Timed()
    try:
        run_arm(payload, sink, watch)
    finally:
        pairs = zip(watch.began[WARM_UP:], watch.began[WARM_UP + 1 :], strict=False)
        sink.emit("steps", seconds=[later - began for began, later in pairs])

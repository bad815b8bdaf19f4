"""An arm that is recorded, inside its worker. Imports nothing of the engine before the reverts are in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.run.arm import run_arm
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.diverge.listener import RunListener
    from specdebug.run.loop import RunLoop

TARGET = f"{__name__}:run_recorded"


def run_recorded(payload: Mapping[str, Any], sink: Sink) -> None:
    """Run one arm as ``run.arm.run_arm`` does. ``run.RecordedRun.job`` packs ``payload``."""
    recording = _Recording(payload["record"])
    try:
        run_arm(payload, sink, recording)
    finally:
        recording.finish()


class _Recording:
    """Has an arm recorded from before its engine is built."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._listener: RunListener | None = None

    def building(self) -> None:
        from specdebug.diverge.keeper import Keeper
        from specdebug.diverge.recorder import HashRecorder
        from specdebug.diverge.stream import Writer

        request = self._request
        if request["hashes"]:
            self._listener = HashRecorder(Writer(Path(request["hashes"])))
        else:
            keep = {(step, call): site for step, call, site in request["keep"]}
            self._listener = Keeper(keep, Path(request["folder"]))
        self._listener.listen()

    def built(self, loop: RunLoop) -> None:
        assert self._listener is not None
        self._listener.attach(loop.session.inside)

    def finish(self) -> None:
        if self._listener is not None:
            self._listener.finish()

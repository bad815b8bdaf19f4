"""An arm that is recorded, inside its worker. Imports nothing of the engine before the reverts are in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.harness.arm import run_arm
from specdebug.targets.wire import Sink

if TYPE_CHECKING:
    from specdebug.diverge.recorder import Recorder
    from specdebug.harness.loop import RunLoop

TARGET = f"{__name__}:run_recorded"


def run_recorded(payload: Mapping[str, Any], sink: Sink) -> None:
    """Run one arm as ``harness.arm.run_arm`` does. ``payload`` is what ``run.RecordedRun.job`` packs."""
    recorders: list[Recorder] = []

    def record(loop: RunLoop) -> None:
        from specdebug.diverge.recorder import Recorder
        from specdebug.diverge.stream import Writer

        request = payload["record"]
        writer = Writer(Path(request["hashes"])) if request["hashes"] else None
        recorder = Recorder(
            writer,
            [tuple(place) for place in request["keep"]],
            Path(request["folder"]),
            by_request=request["by_request"],
        )
        recorder.attach(loop.engine)
        recorders.append(recorder)

    try:
        run_arm(payload, sink, record)
    finally:
        for recorder in recorders:
            recorder.finish()

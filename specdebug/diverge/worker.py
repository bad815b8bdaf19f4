"""An arm that is recorded, inside its worker. Imports nothing of the engine before the reverts are in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.run.arm import run_arm
from specdebug.workers.wire import Sink

if TYPE_CHECKING:
    from specdebug.diverge.recorder import RunListener
    from specdebug.run.loop import RunLoop

TARGET = f"{__name__}:run_recorded"


def run_recorded(payload: Mapping[str, Any], sink: Sink) -> None:
    """Run one arm as ``run.arm.run_arm`` does. ``run.RecordedRun.job`` packs ``payload``."""
    record = payload["record"]
    recording = Listening(lambda: _listener(record), own="engine" not in payload, beside_ours=record["beside_ours"])
    try:
        run_arm(payload, sink, recording)
    finally:
        recording.finish()


class Listening:
    """Has an arm listened to, on our ``own`` engine from before it is built. ``make`` is called then; ``beside_ours``:
    as of ``Session.record``."""

    def __init__(self, make: Callable[[], RunListener], *, own: bool = True, beside_ours: bool = False) -> None:
        self._make, self._own, self._beside_ours = make, own, beside_ours
        self._listener: RunListener | None = None

    def building(self) -> None:
        if self._own:
            self._listener = self._make()
            self._listener.listen()

    def built(self, loop: RunLoop) -> None:
        self._listener = self._listener or self._make()
        loop.session.record(beside_ours=self._beside_ours)
        self._listener.attach(loop.session.inside, beside_ours=self._beside_ours)

    def finish(self) -> None:
        if self._listener is not None:
            self._listener.finish()


def _listener(record: Mapping[str, Any]) -> RunListener:
    from specdebug.diverge.recorder import HashRecorder, Keeper
    from specdebug.diverge.recording import Writer

    if record["hashes"]:
        return HashRecorder(Writer(Path(record["hashes"])), summed=record["summed"], by_row=record["beside_ours"])
    return Keeper({(step, call): site for step, call, site in record["keep"]}, Path(record["folder"]))

"""One arm of a mutant, or of the sound engine, inside a warm worker: recorded, and of the sound one what lines ran.

The verdict is the arm's own: the same oracles, the same events. What records it watches from outside and swallows its
own troubles, so that a mutant which confuses the recorder is not taken for one that a verdict saw.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from specdebug.diverge.worker import Listening
from specdebug.run.warm_worker import with_workload
from specdebug.workers.wire import PipeSink

if TYPE_CHECKING:
    from specdebug.apps.mutants.books import BookKeeper
    from specdebug.apps.mutants.rounding import Keep
    from specdebug.diverge.recorder import RunListener
    from specdebug.run.loop import RunLoop

TARGET = f"{__name__}:run_mutant"


def run_mutant(payload: Mapping[str, Any], sink: PipeSink) -> None:
    """Run one arm. ``payload`` is what ``MutantRun.job_of`` packs: an arm, a patch or none, and where to record."""
    from specdebug.patching import PatchError, apply
    from specdebug.patching.live import end_census
    from specdebug.run.arm import run_arm

    patch = pickle.loads(payload["patch"])
    try:
        apply([patch] if patch is not None else [], "inprocess")
    except PatchError as error:
        sink.emit("usage", message=str(error))
        return
    end_census()
    arm = with_workload(payload, sink)
    if arm is None:
        return
    folder, lines = Path(payload["folder"]), LineCoverage(payload["traced"])
    recording = _Recording(folder, payload["keep"])
    with lines:
        try:
            run_arm(arm, sink, recording)
        finally:
            recording.finish()
    if payload["traced"]:
        (folder / "lines.json").write_text(json.dumps({file: sorted(ran) for file, ran in lines.ran.items()}))


class LineCoverage:
    """The lines of some files that run meanwhile. ``ran``: by file."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self.ran: dict[str, set[int]] = {file: set() for file in files}

    def __enter__(self) -> LineCoverage:
        if self.ran:
            sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        if self.ran:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        ran = self.ran.get(frame.f_code.co_filename)
        if ran is None:
            return None
        add = ran.add
        add(frame.f_lineno)

        def line(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
            add(frame.f_lineno)
            return line

        return line


class _Recording(Listening):
    """Records an arm from before its engine is built, into a folder; or keeps tensors of it there."""

    def __init__(self, folder: Path, keep: Keep) -> None:
        super().__init__(lambda: _listener(folder, keep))
        self._folder = folder
        self._books: BookKeeper | None = None

    def built(self, loop: RunLoop) -> None:
        from specdebug.apps.mutants.books import BookKeeper

        super().built(loop)
        self._books = BookKeeper(loop.session.inside)

    def finish(self) -> None:
        with suppress(Exception):
            super().finish()
        if self._books is not None:
            (self._folder / "books.json").write_text(json.dumps(self._books.kept))


def _listener(folder: Path, keep: Keep) -> RunListener:
    from specdebug.apps.mutants.recorder import TolerantRecorder
    from specdebug.diverge.recorder import Keeper
    from specdebug.diverge.recording import Writer

    if keep:
        return Keeper({(step, call): site for step, call, site in keep}, folder)
    return TolerantRecorder(Writer(folder / "hashes"))

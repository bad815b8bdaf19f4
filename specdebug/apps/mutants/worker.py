"""One arm of a mutant, or of the sound engine, inside a warm worker: recorded, and of the sound one what lines ran.

The verdict is the arm's own. What records it watches from outside and swallows its own troubles. The engine's books on
the host are kept as a digest of each after every step: what no probe's site sees. Of our own engine a recording is
written, which is laid beside the sound one's later. A release's tensors are held against the sound engine's tape as
they pass, and only what comes of that is written (``held.json``)."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from specdebug.diverge.worker import Listening
from specdebug.events import Event, StepOver
from specdebug.run.warm_worker import with_workload
from specdebug.workers.forkserver import start_over
from specdebug.workers.wire import PipeSink

if TYPE_CHECKING:
    from specdebug.apps.mutants.held import HeldListener
    from specdebug.apps.mutants.sound import Keep
    from specdebug.diverge.recorder import RunListener
    from specdebug.patching import Patch
    from specdebug.run.loop import RunLoop
    from specdebug.targets.base import Session
    from specdebug.targets.options import EngineShape

Books = list[dict[str, str]]  # by step, the digest of each book


class BookKeeper:
    """Writes down the books of one engine. A book that a mutant has made unreadable is written as such."""

    hears = (StepOver,)

    def __init__(self, session: Session) -> None:
        self._session = session
        self.kept: Books = []
        session.observers.add(self)

    def on(self, event: Event) -> None:
        self.look()

    def look(self) -> None:
        """Write down what they say now."""
        try:
            books = {name: json.dumps(book) for name, book in self._session.books().items()}
        except Exception as error:
            books = {"books": type(error).__name__}
        self.kept.append(
            {name: hashlib.blake2b(text.encode(), digest_size=6).hexdigest() for name, text in books.items()}
        )


def first_other(sound: Books, other: Books) -> tuple[int, str] | None:
    """The first step, counted from 1, and the book in which two runs differ; None where they do not."""
    for step, (one, two) in enumerate(zip(sound, other, strict=False), start=1):
        for name, digest in one.items():
            if two.get(name) != digest:
                return step, name
    return None if len(sound) == len(other) else (min(len(sound), len(other)) + 1, "steps")


def read_books(path: Path) -> Books:
    """The books that a worker wrote; none if it did not come to that."""
    try:
        found: Books = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found


TARGET, PATCHED, BUILT = (f"{__name__}:{name}" for name in ("run_mutant", "revert", "build"))
TAPE, HELD, BOOKS, LINES = "tape", "held.json", "books.json", "lines.json"
"""The files that a run leaves in its folder."""


def run_mutant(payload: Mapping[str, Any], sink: PipeSink) -> None:
    """Run one arm. ``payload`` is what ``MutantRun.job_of`` packs: an arm, a patch or none, and where to record."""
    from specdebug.patching import PatchError
    from specdebug.patching.live import end_census
    from specdebug.run.session_run import put_in_place

    patch = pickle.loads(payload["patch"])
    of_release = "patches" in payload
    try:
        put_in_place({0: [] if patch is None else [patch]})
    except PatchError as error:
        if of_release:
            start_over(TARGET, _with_patch(payload, patch), sink)
        sink.emit("usage", message=str(error))
        return
    end_census()
    arm = with_workload(payload, sink)
    if arm is not None:
        _run(arm, sink, of_release=of_release)


def _with_patch(payload: Mapping[str, Any], patch: Patch) -> dict[str, Any]:
    """The payload of a run on a release that puts a patch in force with all others, before anything is imported."""
    patches = pickle.loads(payload["patches"])
    more = {**patches, 0: [*patches.get(0, ()), patch]}
    return {**payload, "patches": pickle.dumps(more), "patch": pickle.dumps(None)}


def revert(payload: Mapping[str, Any]) -> None:
    """Put the patches of every run in force as ``run.session_run.revert``, and look up what mutants' may have to
    reach."""
    from specdebug.patching.live import take_census
    from specdebug.run import session_run

    session_run.revert({**payload, "base": False})
    take_census(payload["root"])


def build(payload: Mapping[str, Any]) -> None:
    """Build an arm's engine as ``run.arm.build``, and look that up again: building makes functions."""
    from specdebug.patching.live import take_census
    from specdebug.run import arm

    arm.build(payload)
    take_census(payload["root"])


def _run(arm: Mapping[str, Any], sink: PipeSink, *, of_release: bool) -> None:
    from specdebug.run.arm import run_arm

    with (lines := LineCoverage(arm["traced"])):
        recording = _Held(arm, lines) if of_release else _Recording(Path(arm["folder"]), arm["keep"])
        try:
            run_arm(arm, sink, recording)
        finally:
            recording.finish()
    if arm["traced"]:
        ran = [{file: sorted(some) for file, some in found.items()} for found in (lines.before, lines.ran)]
        (Path(arm["folder"]) / LINES).write_text(json.dumps(ran))


class LineCoverage:
    """The lines of some files that run meanwhile, in this thread and in those that begin. ``ran``: by file; ``before``:
    those that ran before :meth:`mark`."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self.before: dict[str, set[int]] = {file: set() for file in files}
        self.ran: dict[str, set[int]] = {file: set() for file in files}

    def mark(self) -> None:
        """Count apart what runs from now on."""
        for file, ran in self.ran.items():
            self.before[file] |= ran
            ran.clear()

    def __enter__(self) -> LineCoverage:
        if self.ran:
            threading.settrace(self._called)
            sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        if self.ran:
            sys.settrace(None)
            threading.settrace(None)

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
    """Records an arm of our own engine from before it is built, into a folder; or keeps tensors of it there."""

    def __init__(self, folder: Path, keep: Keep) -> None:
        super().__init__(lambda: _listener(folder, keep))
        self._folder = folder
        self._books: BookKeeper | None = None

    def built(self, loop: RunLoop) -> None:
        super().built(loop)
        self._books = BookKeeper(loop.session)

    def finish(self) -> None:
        with suppress(Exception):
            super().finish()
        if self._books is not None:
            (self._folder / BOOKS).write_text(json.dumps(self._books.kept))


class _Held(Listening):
    """Tapes an arm of a release into its folder, or holds it against the ``sound`` engine's tape there, from when the
    engine is built."""

    def __init__(self, payload: Mapping[str, Any], lines: LineCoverage) -> None:
        super().__init__(self._tape, own=False, beside_ours=True)
        self._payload, self._lines = payload, lines
        self._folder = Path(payload["folder"])
        self._books: BookKeeper | None = None
        self._held: HeldListener | None = None

    def _tape(self) -> RunListener:
        from specdebug.apps.mutants.held import BatchTape

        if sound := self._payload["sound"]:
            self._held = _held_to(Path(sound), pickle.loads(self._payload["shape"]))
        return self._held or BatchTape(self._folder / TAPE)

    def built(self, loop: RunLoop) -> None:
        self._lines.mark()
        super().built(loop)
        self._books = BookKeeper(loop.session)

    def finish(self) -> None:
        super().finish()
        if self._books is not None:
            self._books.look()
            (self._folder / BOOKS).write_text(json.dumps(self._books.kept))
        if self._held is not None:
            facts = {"first": self._held.first, "sites": self._held.sites, "before": self._held.before}
            (self._folder / HELD).write_text(json.dumps(facts))


def _held_to(tape: Path, shape: EngineShape) -> HeldListener:
    from specdebug.apps.mutants.held import HeldListener
    from specdebug.base.assets import checkpoint_path
    from specdebug.diverge.rounding import tolerance
    from specdebug.reference.config import read_config

    model = read_config(checkpoint_path(shape.model))
    branches, _, nodes = shape.tree or (1, 0, 1)
    allowed = partial(tolerance, dtype=shape.dtype, layers=model.num_layers, width=model.hidden_size)
    return HeldListener(pickle.loads(tape.read_bytes()), branches, nodes, allowed)


def _listener(folder: Path, keep: Keep) -> RunListener:
    from specdebug.apps.mutants.recorder import TolerantRecorder
    from specdebug.diverge.recorder import Keeper
    from specdebug.diverge.recording import Writer

    if keep:
        return Keeper({(step, call): site for step, call, site in keep}, folder)
    return TolerantRecorder(Writer(folder / "hashes"))

"""One arm of a mutant, or of the sound engine, inside a warm worker: recorded, and of the sound one what lines ran.

The verdict is the arm's own. What records it watches from outside and swallows its own troubles. The engine's books on
the host are kept as a digest of each after every step: what no probe's site sees."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from specdebug.diverge.worker import Listening
from specdebug.events import Event, StepOver
from specdebug.run.warm_worker import with_workload
from specdebug.workers.wire import PipeSink

if TYPE_CHECKING:
    from specdebug.apps.mutants.sound import Keep
    from specdebug.diverge.recorder import RunListener
    from specdebug.engine import Engine
    from specdebug.engine.inspect import EngineView
    from specdebug.run.loop import RunLoop

Books = list[dict[str, str]]  # by step, the digest of each book


class BookKeeper:
    """Writes down the books of one engine. A book that a mutant has made unreadable is written as such."""

    hears = (StepOver,)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.kept: Books = []
        engine.observers.add(self)

    def on(self, event: Event) -> None:
        self.kept.append({})
        for name, read in BOOKS.items():
            try:
                text = json.dumps(list(read(self._engine.view)))
            except Exception as error:
                text = type(error).__name__
            self.kept[-1][name] = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


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


def _queues(view: EngineView) -> Iterator[Any]:
    queues: Sequence[Any] = (view.scheduler.waiting, view.scheduler.running, filter(None, [view.scheduler.chunked]))
    for queue in queues:
        yield [each.rid for each in queue]


def _requests(view: EngineView) -> Iterator[Any]:
    for each in view.engine.requests.values():
        kv = [each.kv_len, each.kv_allocated, each.protected_len, each.cached_tokens, each.node is not None]
        yield [each.rid, each.status.value, *kv]
        yield [each.finish_reason, each.retractions, each.output_ids, each.accept_lengths, bool(each.row)]


def _tree(view: EngineView) -> Iterator[Any]:
    radix = view.cache.radix
    yield [radix.evictable_size, radix.protected_size]
    nodes = list(radix.nodes())
    ages = sorted({node.last_access for node in nodes})
    for node in nodes:
        yield [node.key.array.tolist(), node.draft_written, node.lock_ref, ages.index(node.last_access)]


BOOKS: Mapping[str, Callable[[EngineView], Iterator[Any]]] = {
    "queues": _queues,
    "requests": _requests,
    "radix tree": _tree,
    "free slots and rows": lambda view: iter([[view.memory.allocator.num_free, view.req_to_token.num_free_rows]]),
}
"""Numbers of slots and rows are left out: which free one is taken says nothing of right or wrong."""


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

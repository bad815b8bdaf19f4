"""The engine's books on the host, as a digest of each after every step: what no probe's site sees.

Numbers of slots and rows are left out: which free one is taken says nothing of right or wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.events import Event, StepOver

if TYPE_CHECKING:
    from specdebug.engine import Engine
    from specdebug.engine.inspect import EngineView

Books = list[dict[str, str]]
"""By step, the digest of each book."""


class BookKeeper:
    """Writes down the books of one engine. A book that a mutant has made unreadable is written as such."""

    hears = (StepOver,)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.kept: Books = []
        engine.observers.add(self)

    def on(self, event: Event) -> None:
        self.kept.append({name: _digest(read, self._engine.view) for name, read in BOOKS.items()})


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


def _digest(read: Callable[[EngineView], Iterator[Any]], view: EngineView) -> str:
    try:
        text = json.dumps(list(read(view)))
    except Exception as error:
        text = type(error).__name__
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _queues(view: EngineView) -> Iterator[Any]:
    queues: Sequence[Any] = (view.scheduler.waiting, view.scheduler.running, filter(None, [view.scheduler.chunked]))
    for queue in queues:
        yield [each.rid for each in queue]


def _requests(view: EngineView) -> Iterator[Any]:
    for each in view.engine.requests.values():
        node = each.node is not None
        yield [
            each.rid,
            each.status.value,
            each.kv_len,
            each.kv_allocated,
            each.protected_len,
            each.cached_tokens,
            node,
        ]
        yield [each.finish_reason, each.retractions, each.output_ids, each.accept_lengths, bool(each.row)]


def _tree(view: EngineView) -> Iterator[Any]:
    radix = view.cache.radix
    yield [radix.evictable_size, radix.protected_size]
    nodes = list(radix.nodes())
    ages = sorted({node.last_access for node in nodes})
    for node in nodes:
        yield [node.key.array.tolist(), node.draft_written, node.lock_ref, ages.index(node.last_access)]


def _free(view: EngineView) -> Iterator[Any]:
    yield [view.memory.allocator.num_free, view.req_to_token.num_free_rows]


BOOKS: Mapping[str, Callable[[EngineView], Iterator[Any]]] = {
    "queues": _queues,
    "requests": _requests,
    "radix tree": _tree,
    "free slots and rows": _free,
}

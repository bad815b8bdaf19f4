"""Conservation laws of the room that decoding takes: what a request holds for it, and who runs with what there is.

Nothing else fails of a request that waits, or is set back, though it would fit: the same tokens come out, only later.
What a step takes is counted here page by page from the configuration and from lengths; the ``Reservation``, which tells
the scheduler, is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specdebug.engine.config import EngineConfig
from specdebug.engine.textbook.memory.prefix_cache import PrefixCache
from specdebug.engine.textbook.request import Request, Status


class Needs:
    """Cells and slots that decoding takes, whichever worker an engine has."""

    def __init__(self, config: EngineConfig) -> None:
        spec = config.speculative
        self.page = config.page_size
        self._step = config.alloc_len_per_decode
        self._steps = config.steps_in_flight
        self._borrower = spec if spec is not None and spec.worker == "v1" else None

    def whole(self, cells: int) -> int:
        """So many cells in whole pages."""
        return -(-cells // self.page) * self.page

    def lacking(self, request: Request, cells: int) -> int:
        """Slots, in whole pages, that a request's first ``cells`` cells lack."""
        return max(self.whole(cells) - request.kv_allocated, 0)

    def held(self, request: Request) -> int:
        """Cells beyond its length that a running request holds as a step begins, and at most when one ends."""
        if not request.speculative:
            return self._steps
        return 0 if self._borrower is not None else self._steps * self._step

    def prompt(self, request: Request) -> int:
        """Slots of a request with all its tokens and its first steps."""
        first = self._step if request.speculative and self._borrower is not None else self.held(request)
        return self.whole(len(request.all_ids) + first)

    def borrowed(self, running: Sequence[Request]) -> int:
        """Slots that a step of these takes and gives back: those of all drafts, or of all verifies, if they are
        more."""
        spec = self._borrower
        if spec is None:
            return 0
        speculating = [request for request in running if request.speculative]
        drafts = sum(self.lacking(request, self._drafted(request.kv_len)) for request in speculating)
        return max(drafts, sum(self.lacking(request, request.kv_len + spec.tree_size) for request in speculating))

    def _drafted(self, length: int) -> int:
        """The cell behind the last that the worker v1 drafts into."""
        assert self._borrower is not None
        branches, steps = self._borrower.eagle_topk, self._borrower.num_steps
        if min(branches, self.page) == 1:
            return length + branches * steps
        first, last = length // self.page, (length + steps - 1) // self.page
        return (first + branches * (last - first + 1)) * self.page


class _Holder(NamedTuple):
    """A request that holds a row as a step begins; ``running``, or half prefilled."""

    request: Request
    length: int
    retractions: int
    running: bool


@dataclass(frozen=True)
class _Start:
    """A step's beginning. lacking: slots that a decode of the running requests takes. free: those that it could get.
    spare: those of them that no request counts on. first: the next to be admitted, None if none can be; it needs
    ``wanted`` slots, and a step that admits has to admit it if it is ``due``.
    """

    holders: tuple[_Holder, ...]
    lacking: int
    free: int
    spare: int
    first: Request | None
    wanted: int
    due: bool


class Room:
    """Watches every step from its beginning to its end, and tells of the last at the next look. It notes nothing before
    the first look.
    """

    def __init__(self, config: EngineConfig, cache: PrefixCache) -> None:
        self._cache = cache
        self._needs = Needs(config)
        self._watching = self._on_hold = False
        self._start: _Start | None = None
        self._found: list[str] = []
        self._seen: dict[Request, tuple[int, bool]] = {}
        """All requests at the last beginning: with retractions, and True of holders."""

    def begin(self, running: Sequence[Request], chunked: Request | None, waiting: Sequence[Request]) -> None:
        """A step begins, of these."""
        if not self._watching:
            return
        holders = [_Holder(request, request.kv_len, request.retractions, True) for request in running]
        needs, free, promised = self._needs, self._cache.available, self._needs.borrowed(running)
        lacking = promised + sum(needs.lacking(one, one.kv_len + needs.held(one)) for one in running)
        if chunked is not None:
            holders.append(_Holder(chunked, chunked.kv_len, chunked.retractions, False))
            promised += max(needs.prompt(chunked) - chunked.kv_allocated, 0)
        self._note_hold([each.request for each in holders], waiting)
        first = waiting[0] if waiting and self._cache.req_to_token.num_free_rows else None
        wanted = 0 if first is None else needs.prompt(first)
        due = first is not None and chunked is None and not self._on_hold and wanted <= free - promised
        self._start = _Start(tuple(holders), lacking, free, free - promised, first, wanted, due)

    def _note_hold(self, holders: Sequence[Request], waiting: Sequence[Request]) -> None:
        """After a request was set back none is admitted until one ends. Where either may have come first, none
        is due."""
        seen = self._seen
        if any(one.retractions > seen.get(one, (0, False))[0] for one in {*seen, *holders, *waiting}):
            self._on_hold = True
        elif any(held and request.finished for request, (_, held) in seen.items()):
            self._on_hold = False
        self._seen = {request: (request.retractions, False) for request in waiting}
        self._seen |= {request: (request.retractions, True) for request in holders}

    def end(self) -> None:
        """The step that began has ended."""
        start, self._start = self._start, None
        if start is not None:
            self._found = [*self._reserved(start), *self._set_back(start), *self._admitted(start)]

    def check(self, holders: Iterable[Request]) -> list[str]:
        """Violated laws as ``"<law>: <detail>"``; an empty list when both hold.

        reserve: a request that holds a row has whole pages for what it has committed, between steps no more beyond
        than its worker's discipline lets it keep, and through a decode just what this asks for. room: none is set
        back while a step's slots can be had; who waits first is admitted once it fits, and not before.
        """
        found, self._found, self._watching = self._found, [], True
        return [*found, *(problem for request in holders for problem in self._kept(request))]

    def _kept(self, request: Request) -> Iterator[str]:
        least, held = self._needs.whole(request.kv_len), request.kv_allocated
        most = self._needs.whole(request.kv_len + self._needs.held(request))
        if held % self._needs.page or not least <= held <= most:
            due = f"{least}" if least == most else f"{least} to {most}"
            committed = f"has committed {request.kv_len} positions"
            yield f"reserve: {request.rid} {committed} and holds {held} slots, not {due} in whole pages"

    def _reserved(self, start: _Start) -> Iterator[str]:
        for request, length, retractions, running in start.holders:
            ahead, slots = self._needs.held(request), request.kv_allocated
            due = self._needs.whole(length + ahead)
            decoded = running and request.kv_len > length and request.retractions == retractions
            if decoded and (slots < due or (ahead and slots > due)):
                yield f"reserve: {request.rid} went on from {length} with {slots} slots, not {due}"

    def _set_back(self, start: _Start) -> Iterator[str]:
        back = [each.request.rid for each in start.holders if each.request.retractions > each.retractions]
        if back and start.lacking <= start.free:
            yield f"room: {back[0]} was set back, for {start.lacking} slots when {start.free} could be had"

    def _admitted(self, start: _Start) -> Iterator[str]:
        first = start.first
        if first is None or first.finish_reason == "abort":
            return
        needed = f"with {start.spare} slots to spare, and needs {start.wanted}"
        if first.status is Status.WAITING:
            if start.due:
                yield f"room: {first.rid} waits {needed}"
        elif first.retractions == 0 and start.wanted - first.cached_tokens > start.spare:
            yield f"room: {first.rid} was admitted {needed}, of which {first.cached_tokens} are cached"

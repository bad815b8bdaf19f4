"""Conservation laws of our engine's books, which hold after every step. A violation names the law, what breaks it and
who holds that; nothing else fails of a request that waits though it fits, or of a prefix that is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from specdebug.engine.config import EngineConfig, round_up
from specdebug.engine.inspect import EngineView
from specdebug.engine.textbook.engine import Engine
from specdebug.engine.textbook.memory.allocator import SlotAllocator
from specdebug.engine.textbook.memory.prefix_cache import PrefixCache
from specdebug.engine.textbook.memory.radix_cache import RadixCache, TreeNode, beyond
from specdebug.engine.textbook.memory.req_to_token import PADDING_ROW, ReqToToken
from specdebug.engine.textbook.request import Request, Status
from specdebug.events import Scheduling


def check_pools(cache: PrefixCache, holders: Iterable[Request]) -> list[str]:
    """Violated laws as ``"<law>: <detail>"``; an empty list when all hold.

    ownership: free + cached + held = N, no slot has two owners, and the allocator lists each free page once. liveness:
    every row cell below the committed length is a real slot, and of the cached prefix the tree's. rows: every row is
    free or held by one request. locks: evictable + protected = cached, and a node's ``lock_ref`` counts the requests
    that read it. order: a node was used no earlier than its children, and all that may be evicted is listed for that.
    """
    problems: list[str] = []
    allocator, radix, table = cache.memory.allocator, cache.radix, cache.req_to_token
    page = allocator.page_size
    holders, nodes, cached = list(holders), list(radix.nodes()), radix.all_slots()
    held = [(one.rid, table.slots(one.row, one.protected_len, one.kv_allocated)) for one in holders]
    owners = torch.zeros(allocator.num_slots + page, dtype=torch.int64)
    for label, slots in (("free", allocator.free_slots()), ("cached", cached), *held):
        slots = slots.cpu()
        outside = (slots < page) | (slots >= owners.numel())
        if bool(outside.any()):
            problems.append(f"liveness: {label} holds slot {int(slots[outside][0])}, outside the pool")
            slots = slots[~outside]
        owners += torch.bincount(slots, minlength=owners.numel())
    usable = owners[page:]
    shared, lost = (usable > 1).nonzero().flatten(), (usable == 0).nonzero().flatten()
    if shared.numel():
        problems.append(f"ownership: slot {int(shared[0]) + page} has {int(usable[shared[0]])} owners")
    if lost.numel():
        problems.append(f"ownership: {lost.numel()} slots have no owner (first: {int(lost[0]) + page})")
    problems += [*_free_list(allocator), *_rows(table, holders)]
    evictable = sum(len(node.key) for node in nodes if node.lock_ref == 0)
    if radix.total_size != cached.numel():
        problems.append(f"locks: evictable + protected = {radix.total_size}, cached = {cached.numel()}")
    elif radix.evictable_size != evictable:
        problems.append(f"locks: evictable = {radix.evictable_size}, but nodes without a lock hold {evictable} slots")
    problems += [*_locks(nodes, holders), *_order(radix, nodes)]
    for request in holders:
        cells = table.slots(request.row, 0, request.kv_len)
        dead = ((cells < page) | (cells >= owners.numel())).nonzero()
        if dead.numel():
            at = int(dead[0])
            problems.append(f"liveness: {request.rid} position {at} of {request.kv_len} points outside the pool")
        else:
            problems += _prefix(request, cells)
    return problems


def check_others(others: Iterable[Request], waiting: Iterable[Request]) -> list[str]:
    """The law ``rows`` of requests that hold none: they have no row, no positions and no node of the tree, and have
    ended unless they wait."""
    problems = []
    queued = {request.rid for request in waiting}
    for request in others:
        ended = request.rid not in queued
        state = "has ended" if ended else "waits"
        if ended != (request.status is Status.FINISHED):
            problems.append(f"rows: {request.rid} {state}, and its status is {request.status.name}")
        if held := request.row or request.kv_len or request.kv_allocated or request.protected_len:
            problems.append(f"rows: {request.rid} {state}, and has row {request.row} and {request.kv_len} positions")
        if not held and (request.node is not None or request.unwritten_draft_slots is not None):
            problems.append(f"rows: {request.rid} {state}, and reads the radix tree")
    return problems


def check_streams(requests: Iterable[Request]) -> list[str]:
    """The law ``streams``: each request with a temperature that has a token has a generator of its own. Draws from one
    that others use are as random, so no test of odds sees them; but they depend on who else is served."""
    problems: list[str] = []
    owners: dict[torch.Generator, str] = {}
    for request in requests:
        if request.sampling.greedy or not request.output_ids:
            continue
        if request.generator is None:
            problems.append(f"streams: {request.rid} has sampled, and has no generator of its own")
        elif (owner := owners.setdefault(request.generator, request.rid)) != request.rid:
            problems.append(f"streams: {request.rid} and {owner} draw from one generator")
    return problems


def _free_list(allocator: SlotAllocator) -> Iterator[str]:
    times = np.bincount(allocator.listed(), minlength=1)
    (twice,) = np.nonzero(times > 1)
    if twice.size:
        yield f"ownership: page {twice[0]} is listed as free {times[twice[0]]} times"
    listed = int(times.sum()) * allocator.page_size
    if not listed == allocator.num_free == allocator.free_slots().numel():
        yield f"ownership: num_free is {allocator.num_free}, {listed} free slots are listed"


def _rows(table: ReqToToken, holders: Sequence[Request]) -> Iterator[str]:
    claims: dict[int, list[str]] = {row: [] for row in table.rows}
    for row, by in [(row, "the free list") for row in table.free_rows] + [(one.row, one.rid) for one in holders]:
        claims.setdefault(row, []).append(by)
    for row, names in claims.items():
        if row not in table.rows:
            what = "which pads batches" if row == PADDING_ROW else "which there is not"
            yield f"rows: {' and '.join(names)} holds row {row}, {what}"
        elif not names:
            yield f"rows: row {row} is lost: neither free nor held by a request that prefills or runs"
        elif len(names) > 1:
            yield f"rows: row {row} is held by {' and '.join(names)}"


def _locks(nodes: Sequence[TreeNode], holders: Sequence[Request]) -> Iterator[str]:
    readers: dict[int, list[str]] = {node.serial: [] for node in nodes}
    for request in holders:
        for node in request.node.path() if request.node is not None else ():
            if node.serial in readers:
                readers[node.serial].append(request.rid)
            else:
                yield f"locks: {request.rid} reads radix node {node.serial}, which is not in the tree"
    for node in nodes:
        rids = readers[node.serial]
        if node.lock_ref != len(rids):
            who = f": {', '.join(rids)}" if rids else ""
            yield f"locks: radix node {node.serial} has lock_ref {node.lock_ref}, {len(rids)} requests read it{who}"


def _order(radix: RadixCache, nodes: Sequence[TreeNode]) -> Iterator[str]:
    listed = {leaf.serial for leaf in radix.leaves()}
    for node in nodes:
        above = node.parent
        if above is not None and above.parent is not None and above.last_access < node.last_access:
            since = f"was last used at {above.last_access}, its child {node.serial} at {node.last_access}"
            yield f"order: radix node {above.serial} {since}"
        evictable = not node.children and node.lock_ref == 0
        if evictable != (node.serial in listed):
            state = "can be evicted and is not" if evictable else "cannot be evicted and is"
            yield f"order: radix node {node.serial} {state} listed for that"
        listed.discard(node.serial)
    if listed:
        yield f"order: radix node {min(listed)} is listed for eviction and not in the tree"


def _prefix(request: Request, cells: torch.Tensor) -> Iterator[str]:
    """The cells of a prefix that a request has from the tree are the tree's slots."""
    if request.node is None:
        return
    tree = torch.cat([cells[:0], *reversed([node.slots for node in request.node.path()])])
    if tree.numel() != request.protected_len:
        held = f"{request.rid} has {request.protected_len} protected positions, the tree holds {tree.numel()} of them"
        yield f"liveness: {held}"
    elif not torch.equal(cells[: tree.numel()], tree):
        at = int((cells[: tree.numel()] != tree).nonzero()[0])
        yield f"liveness: {request.rid} position {at} reads slot {int(cells[at])}, it is cached in slot {int(tree[at])}"


class Recency:
    """Watches from one look to the next that time goes on in the tree, and that what was evicted had been used no later
    than what could have been."""

    def __init__(self, radix: RadixCache) -> None:
        self._radix = radix
        self._leaves: dict[int, int] = {}  # by serial of a leaf of the last look: when it had been used
        self._newest = self._last_made = 0  # the last use of any node, and the highest serial, up to the last look

    def check(self) -> list[str]:
        """The law ``order`` of what was made and evicted since the last look."""
        nodes = list(self._radix.nodes())
        return self._made_later(nodes) + self._evicted_in_order({node.serial for node in nodes})

    def _made_later(self, nodes: Sequence[TreeNode]) -> list[str]:
        """A node was made later than any was used before."""
        newest, last_made = self._newest, self._last_made
        self._newest = max([newest, *(node.last_access for node in nodes)])
        self._last_made = max([last_made, *(node.serial for node in nodes)])
        for node in nodes:
            if node.serial > last_made and node.last_access <= newest:
                used = f"radix node {node.serial} is new and was last used at {node.last_access}"
                return [f"order: {used}, another at {newest} before"]
        return []

    def _evicted_in_order(self, there: set[int]) -> list[str]:
        """A leaf used as long ago as it was at the last look was neither read nor extended in between, so that it could
        have been evicted all the time. ``there``: serials of the nodes that are in the tree now."""
        before, self._leaves = self._leaves, {leaf.serial: leaf.last_access for leaf in self._radix.leaves()}
        gone = [(used, serial) for serial, used in before.items() if serial not in there]
        kept = [(used, serial) for serial, used in before.items() if self._leaves.get(serial) == used]
        if not gone or not kept or min(kept)[0] >= max(gone)[0]:
            return []
        (used, out), (older, left) = max(gone), min(kept)
        return [f"order: radix node {out} (last used at {used}) was evicted before node {left} (last used at {older})"]


class Needs:
    """Cells and slots that decoding takes, counted here page by page from the configuration and from lengths; the
    ``Reservation``, which tells the scheduler, is not asked."""

    def __init__(self, config: EngineConfig) -> None:
        spec = config.speculative
        self.page = config.page_size
        self._step, self._steps = config.alloc_len_per_decode, config.steps_in_flight
        self._borrower = spec if spec is not None and spec.worker == "v1" else None

    def whole(self, cells: int) -> int:
        """So many cells in whole pages."""
        return round_up(cells, self.page)

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


class Room:
    """Watches every step from its beginning to its end, and tells of the last at the next look."""

    def __init__(self, config: EngineConfig, cache: PrefixCache) -> None:
        self._cache = cache
        self._needs = Needs(config)
        self._on_hold = False
        self._over: Callable[[], Iterator[str]] | None = None
        self._found: list[str] = []
        self._seen: dict[Request, tuple[int, bool]] = {}
        """All requests at the last beginning: with retractions, and True of holders."""

    def begin(self, running: Sequence[Request], chunked: Request | None, waiting: Sequence[Request]) -> None:
        """A step begins, of these."""
        needs, free, promised = self._needs, self._cache.available, self._needs.borrowed(running)
        runs = [(one, one.kv_len, one.retractions) for one in running]
        lacking = promised + sum(needs.lacking(one, one.kv_len + needs.held(one)) for one in running)
        holders = [*running]
        if chunked is not None:
            holders.append(chunked)
            promised += max(needs.prompt(chunked) - chunked.kv_allocated, 0)
        retracted = [(one, one.retractions) for one in holders]
        self._note_hold(holders, waiting)
        first = waiting[0] if waiting and self._cache.req_to_token.num_free_rows else None
        wanted, spare = 0 if first is None else needs.prompt(first), free - promised
        due = first is not None and chunked is None and not self._on_hold and wanted <= spare

        def over() -> Iterator[str]:
            for request, length, retractions in runs:
                ahead, slots = needs.held(request), request.kv_allocated
                must = needs.whole(length + ahead)
                decoded = request.kv_len > length and request.retractions == retractions
                if decoded and (slots < must or (ahead and slots > must)):
                    yield f"reserve: {request.rid} went on from {length} with {slots} slots, not {must}"
            back = [request.rid for request, before in retracted if request.retractions > before]
            if back and lacking <= free:
                yield f"room: {back[0]} was set back, for {lacking} slots when {free} could be had"
            if first is None or first.finish_reason == "abort":
                return
            needed = f"with {spare} slots to spare, and needs {wanted}"
            if first.status is Status.WAITING:
                if due:
                    yield f"room: {first.rid} waits {needed}"
            elif first.retractions == 0 and wanted - first.cached_tokens > spare:
                yield f"room: {first.rid} was admitted {needed}, of which {first.cached_tokens} are cached"

        self._over = over

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
        over, self._over = self._over, None
        if over is not None:
            self._found = list(over())

    def check(self, holders: Iterable[Request]) -> list[str]:
        """Violated laws as ``"<law>: <detail>"``; an empty list when both hold.

        reserve: a request that holds a row has whole pages for what it has committed, between steps no more beyond
        than its worker's discipline lets it keep, and through a decode just what this asks for. room: none is set
        back while a step's slots can be had; who waits first is admitted once it fits, and not before.
        """
        found, self._found = self._found, []
        return [*found, *(problem for request in holders for problem in self._kept(request))]

    def _kept(self, request: Request) -> Iterator[str]:
        least, held = self._needs.whole(request.kv_len), request.kv_allocated
        most = self._needs.whole(request.kv_len + self._needs.held(request))
        if held % self._needs.page or not least <= held <= most:
            due = f"{least}" if least == most else f"{least} to {most}"
            committed = f"has committed {request.kv_len} positions"
            yield f"reserve: {request.rid} {committed} and holds {held} slots, not {due} in whole pages"


class _Path(NamedTuple):
    """The slots from the root to the end of a node: ``length`` of them, of the first ``written`` with draft KV.

    tokens: int64 [length + beyond(lookahead)], those that the slots hold and those after them.
    """

    tokens: npt.NDArray[np.int64]
    length: int
    written: int


_ROOT = _Path(np.empty(0, dtype=np.int64), 0, 0)


class Reuse:
    """Watches from one look to the next that requests use what the tree holds, and leave there what they computed.

    What the tree holds is told here from copies of its nodes' tokens, compared one by one, and not by the tree's own
    search. Between looks an engine may make any number of steps, be flushed, and set requests back. A node of the last
    look that is still there was there all the time, with the same tokens and no less draft KV; that is all that is
    assumed. ``draft_kv``: there is any. ``lookahead``: tokens beyond a slot that what it holds depends on.
    """

    def __init__(self, config: EngineConfig, radix: RadixCache, *, lookahead: int, draft_kv: bool) -> None:
        spec = config.speculative
        self._radix = radix
        self._enabled, self._page = config.radix_cache, config.page_size
        self._lookahead, self._beyond = lookahead, beyond(lookahead)
        self._draft_kv = draft_kv
        self._recompute = draft_kv and spec is not None and spec.draft_kv_on_hit == "recompute"
        self._paths: dict[int, _Path] = {}  # by serial of a node of the last look
        self._made = self._evicted = 0
        self._admitted: set[Request] = set()
        self._ended: set[Request] = set()

    def check(self, requests: Iterable[Request], holders: Iterable[Request]) -> list[str]:
        """The laws ``reuse`` and ``kept``, of what has happened since the last look. ``requests``: all that the engine
        knows; ``holders``: those of them that hold a row.

        reuse: a request that was admitted for the first time had no less from the tree than that held of its prompt.
        kept: the tree has the whole pages of what a holder computed of its prompt, and of all that a request computed
        which came to its end, with draft KV if it drafted; and no holder counts draft KV of its prefix as missing.
        """
        nodes = list(self._radix.nodes())
        if not self._enabled:
            return [f"kept: the prefix cache is off, and {len(nodes)} nodes are in its tree"] if nodes else []
        admitted, ended = self._news(requests)
        made, evicted, before = self._made, self._evicted, self._paths
        self._made, self._evicted = self._radix.made, self._radix.made - len(nodes)
        if admitted or ended or (made, evicted) != (self._made, self._evicted):  # else the tree is as it was
            self._paths = self._look(nodes)
        stayed = [path for serial, path in before.items() if serial in self._paths] if admitted else []
        problems = [problem for request in admitted for problem in self._used(request, stayed)]
        if evicted == self._evicted:
            problems += [problem for request in ended for problem in self._left(request)]
        return problems + [problem for request in holders for problem in self._published(request)]

    def _news(self, requests: Iterable[Request]) -> tuple[list[Request], list[Request]]:
        """Requests first admitted since the last look, and those that have come to their end; aborted ones left out."""
        admitted, ended = self._admitted, self._ended
        known = [each for each in requests if each.status is not Status.WAITING or each.retractions]
        self._admitted, self._ended = set(known), {each for each in known if each.status is Status.FINISHED}
        served = [each for each in known if each.finish_reason != "abort"]
        came = [each for each in served if each not in admitted]
        return came, [each for each in served if each in self._ended and each not in ended]

    def _look(self, nodes: Sequence[TreeNode]) -> dict[int, _Path]:
        """The path to each node; parents come first. The tokens to one that was there before are kept as they were."""
        paths: dict[int, _Path] = {}
        for node in nodes:
            assert node.parent is not None
            above, known = paths.get(node.parent.serial, _ROOT), self._paths.get(node.serial)
            length = above.length + len(node.key) if known is None else known.length
            tokens = np.concatenate([above.tokens[: above.length], node.key.array]) if known is None else known.tokens
            written = length if node.draft_written and above.written == above.length else above.written
            paths[node.serial] = _Path(tokens, length, written)
        return paths

    def _used(self, request: Request, stayed: Iterable[_Path]) -> Iterator[str]:
        most = len(request.prompt_ids) if request.cache_limit is None else request.cache_limit + self._beyond
        shared = self._shared(request.prompt_ids[:most], stayed)
        needs_draft = self._recompute and request.speculative
        there = max((min(each) if needs_draft else each[0] for each in shared), default=0)
        if request.cached_tokens < there:
            yield f"reuse: {request.rid} had {request.cached_tokens} of the {there} positions cached of its prompt"

    def _left(self, request: Request) -> Iterator[str]:
        """The newest token of a request has no KV; all before it were computed, and those are cached whose draft KV
        depends on no later token."""
        due = self._whole_pages(len(request.all_ids) - self._beyond)
        shared = self._shared(request.all_ids, self._paths.values())
        there, drafted = max((each[0] for each in shared), default=0), max(map(min, shared), default=0)
        if there < due:
            yield f"kept: {request.rid} has ended, and the tree has {there} of the {due} positions it computed"
        elif self._draft_kv and request.speculative and drafted < due:
            said = f"has draft KV of {drafted} of the {due} positions it computed"
            yield f"kept: {request.rid} has ended, and the tree {said}"

    def _published(self, request: Request) -> Iterator[str]:
        due = self._whole_pages(min(request.kv_len, len(request.prompt_ids)) - self._beyond)
        if request.protected_len < due:
            shared = f"shares {request.protected_len} of the {due} positions it computed of its prompt"
            yield f"kept: {request.rid} {shared}"
        lacking = request.unwritten_draft_slots
        if lacking is not None and lacking.numel():
            yield f"kept: {request.rid} counts draft KV of {lacking.numel()} cached positions as missing"

    def _shared(self, ids: Sequence[int], paths: Iterable[_Path]) -> list[tuple[int, int]]:
        """Of each path the leading slots, in whole pages, that are a request's of these tokens, too; and how many of
        the path's have draft KV."""
        tokens = np.asarray(ids, dtype=np.int64)
        found = []
        for path in paths:
            most = min(path.length, min(len(path.tokens), len(tokens)) - self._beyond)
            compared = most + self._lookahead
            (differs,) = np.nonzero(path.tokens[:compared] != tokens[:compared]) if most > 0 else (np.empty(0),)
            same = int(differs[0]) - self._lookahead if differs.size else most
            found.append((self._whole_pages(same), path.written))
        return found

    def _whole_pages(self, positions: int) -> int:
        return max(positions, 0) // self._page * self._page


class _Laws:
    """All laws of one engine's books, watched from now on."""

    hears = (Scheduling,)

    def __init__(self, view: EngineView) -> None:
        self._cache, self._scheduler = view.cache, view.scheduler
        radix, lookahead, draft_kv = self._cache.radix, self._cache.lookahead, self._cache.memory.draft is not None
        self._room, self._recency = Room(view.config, self._cache), Recency(radix)
        self._reuse = Reuse(view.config, radix, lookahead=lookahead, draft_kv=draft_kv)
        view.engine.observers.add(self)

    def on(self, event: Scheduling) -> None:
        if event.over:
            self._room.end()
        else:
            self._room.begin(self._scheduler.running, self._scheduler.chunked, self._scheduler.waiting)

    def check(self, requests: Collection[Request]) -> list[str]:
        holders = self._scheduler.holders
        held = {request.rid for request in holders}
        others = [request for request in requests if request.rid not in held]
        problems = check_pools(self._cache, holders) + check_others(others, self._scheduler.waiting)
        problems += self._recency.check() + self._room.check(holders) + self._reuse.check(requests, holders)
        return problems + check_streams(requests)


WATCHED: WeakKeyDictionary[Engine, _Laws] = WeakKeyDictionary()
"""The engines that were looked at."""


def broken_laws(engine: Engine) -> list[str]:
    """Laws that an engine's books break, as ``"<law>: <detail>"``. It is watched from the first look on; some laws are
    of what has happened since the last."""
    if engine not in WATCHED:
        WATCHED[engine] = _Laws(engine.view)
    return WATCHED[engine].check(engine.requests.values())

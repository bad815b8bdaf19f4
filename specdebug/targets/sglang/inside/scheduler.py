"""SGLang's scheduler: its batches, its requests, and the conservation laws of its pools, added up after each batch.

They are the laws of our own engine (``targets/laws.py``), over what SGLang keeps: pages that are free, in
the radix tree, or a request's own; rows of ``req_to_token``; and how many requests lock each node.
"""

from __future__ import annotations

import dataclasses
import inspect
import tempfile
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdebug.base.errors import InvalidOption
from specdebug.targets.ranks.layout import RankLayout
from specdebug.targets.sglang.inside.seats import Seat, in_sglang
from specdebug.targets.sglang.inside.states import violated_states
from specdebug.targets.sglang.inside.transfers import serve_bootstrap
from specdebug.targets.sglang.inside.windows import MAP, full_pool, violated_windows

_BATCH, _SCHEDULER = "srt.managers.schedule_batch", "srt.managers.scheduler:Scheduler"
RUN, TAKE = (
    Seat("the scheduler's batches", (f"{_SCHEDULER}.{name}",)) for name in ("run_batch", "process_batch_result")
)
"""The methods that launch a batch and that take its results."""
HELD = "what requests hold"
HELD_SEATS = (
    *(
        Seat(HELD, (f"{_BATCH}:ReqKvInfo.{name}", f"{_BATCH}:Req.{name}"))
        for name in ("req_pool_idx", "cache_protected_len", "kv_committed_len", "kv_allocated_len")
    ),
    Seat(HELD, (f"{_BATCH}:Req.lock", f"{_BATCH}:Req.last_node")),
    Seat(HELD, (f"{_SCHEDULER}.cur_batch_for_debug", f"{_SCHEDULER}.cur_batch")),
    *(Seat(HELD, (f"{_SCHEDULER}.{name}",)) for name in ("running_batch", "last_batch", "chunked_req")),
)
"""The fields that are read of requests, by the names that they have had."""
BOOKS = "the books of the memory pools"
_PAGED, _TREE = "srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator", "srt.mem_cache.radix_cache:RadixCache"
BOOKS_SEATS = (
    *(
        Seat(BOOKS, (f"{_SCHEDULER}.{name}",))
        for name in ("req_to_token_pool", "token_to_kv_pool_allocator", "tree_cache")
    ),
    *(Seat(BOOKS, (f"srt.mem_cache.memory_pool:ReqToTokenPool.{name}",)) for name in ("free_slots", "req_to_token")),
    Seat(BOOKS, (f"{_PAGED}.get_all_free_pages", f"{_PAGED}.free_pages")),
    *(
        Seat(BOOKS, (f"{_TREE}.{name}",))
        for name in ("total_size", "all_values_flatten", "evictable_size", "protected_size")
    ),
)
"""The fields that are read beside the requests."""
_MICRO_BATCHES = ("mbs", "running_mbs", "last_mbs")
"""Of a scheduler that is a stage of a pipeline; others have none."""
_HANDING = ("disagg_prefill_inflight_queue", "disagg_decode_prealloc_queue", "disagg_decode_transfer_queue")
"""The queues of requests that are handed over; a server that does all has none."""


RECEIVE = Seat(
    "the requests that arrive",
    ("srt.managers.scheduler_components.request_receiver:SchedulerRequestReceiver.recv_requests",),
)
PULL = Seat(
    "the requests that arrive at a rank",
    ("srt.managers.scheduler_components.request_receiver:SchedulerRequestReceiver._pull_raw_reqs",),
)
"""Before a server's ranks pass them on to each other."""
SEND = Seat("what is streamed", ("srt.managers.scheduler_components.output_sender:SenderWrapper.send_output",))
RELEASE = Seat("the ends of requests", ("srt.managers.scheduler_components.batch_result_processor:release_kv_cache",))


@dataclass(frozen=True)
class Start:
    """SGLang's own arguments and ports, which all ranks of a server have."""

    args: Any
    ports: Any

    @classmethod
    def of(cls, words: Sequence[str], *, apart: bool = False) -> Start:
        """Those of a server by its command line. ``apart``: each rank is to listen by itself. Raises what SGLang
        raises."""
        arguments = in_sglang("srt.server_args")
        args = arguments.prepare_server_args([*words])
        ports = arguments.PortArgs.init_new(args)
        _unmade(ports)
        return cls(args, _apart(ports) if apart else ports)

    @property
    def bootstrap_port(self) -> int:
        """The port at which a server that decodes finds the one that prefills."""
        return int(self.args.disaggregation_bootstrap_port)


def _unmade(ports: Any) -> None:
    """Remove the empty files that reserve the names of a server's sockets: SGLang leaves them behind."""
    for name in vars(ports):
        before, scheme, path = str(getattr(ports, name)).partition("ipc://")
        if scheme and not before:
            Path(path).unlink(missing_ok=True)


def _apart(ports: Any) -> Any:
    """The ports of one rank: sockets of files of its own, but what ranks find each other by."""
    own = {name: f"ipc://{tempfile.mktemp(prefix='specdebug-')}" for name in vars(ports) if name.endswith("_ipc_name")}
    own = {name: path for name, path in own.items() if getattr(ports, name) is not None}
    return dataclasses.replace(ports, **own)


def _check(args: Any) -> None:
    """Check the options as a server does before it starts its ranks. Raises InvalidOption."""
    if hasattr(args, "resolve_once"):  # from some release after 0.5.18 on
        args.resolve_once()
    try:
        args.check_server_args()
    except AssertionError as error:
        raise InvalidOption(f"engine: SGLang refuses these options: {error}") from error


def make_scheduler(start: Start, layout: RankLayout, rank: int = 0) -> Any:
    """A scheduler of one rank. Raises InvalidOption for what a server refuses before it starts, and what SGLang
    raises."""
    own = in_sglang("srt.managers.scheduler")
    within = layout.within(rank)
    if not within:
        _check(start.args)
    part = layout.part(rank) if layout.dp > 1 else None
    ports = _apart(start.ports) if rank else start.ports
    if not hasattr(own, "SpawnRanks"):  # up to some release after 0.5.18 ranks are told one by one
        if hasattr(own, "publish"):
            own.publish(start.args, role="scheduler")
        ranks = {"gpu_id": rank, "tp_rank": within % layout.tp, "pp_rank": layout.stage(rank), "dp_rank": part}
        more = [*inspect.signature(own.Scheduler).parameters][2:]
        return own.Scheduler(start.args, ports, *(ranks.get(name, 0) for name in more))
    own.publish(start.args, role="scheduler", ranks=own.SpawnRanks(world_rank=within, dp_rank=part, gpu_id=rank))
    if layout.role(rank) == "prefill" and not within:
        serve_bootstrap()
    return own.Scheduler(start.args, ports)


@dataclass(frozen=True)
class Held:
    """``row``: of ``req_to_token``, None where the request holds nothing. Of its positions, the first ``protected`` are
    the tree's, ``committed`` have KV, and ``allocated`` have slots. ``node``: of the radix tree, the last that it
    locks. ``ids``: its tokens."""

    rid: str
    row: Any
    protected: int
    committed: int
    allocated: int
    node: Any
    ids: Sequence[int]


def requests_of(scheduler: Any) -> list[Any]:
    """The requests of the batch that runs on, of the last one, and of the one that was launched last, which the others
    do not have while the results of the last are taken; in a pipeline those of all micro-batches."""
    launched = scheduler.cur_batch if hasattr(scheduler, "cur_batch") else scheduler.cur_batch_for_debug
    batches = [scheduler.running_batch, scheduler.last_batch, launched]
    for name in _MICRO_BATCHES:
        batches += getattr(scheduler, name, ())
    requests = [request for batch in batches if batch is not None for request in batch.reqs]
    requests += [scheduler.chunked_req] if scheduler.chunked_req is not None else []
    requests += _handed_over(scheduler)
    return [*{id(each): each for each in requests}.values()]


def holders(scheduler: Any) -> list[Held]:
    """The requests that hold a row."""
    every = map(held, requests_of(scheduler))
    return [each for each in every if each.row is not None]


def _handed_over(scheduler: Any) -> list[Any]:
    """The requests that hold slots beside all batches of a server that only prefills or only decodes."""
    queues = [getattr(scheduler, name, None) for name in _HANDING]
    if not any(queues):
        return []
    queues.append(scheduler.waiting_queue)
    each_of = (each for queue in queues for each in getattr(queue, "queue", queue) or ())
    return [getattr(each, "req", each) for each in each_of]


def held(request: Any) -> Held:
    """Return the slots that a request holds now. Raises AttributeError where a release keeps it elsewhere."""
    own = request if hasattr(request, "req_pool_idx") else request.kv
    if hasattr(request, "kv_allocated_len"):
        allocated = int(request.kv_allocated_len)
    else:  # some releases know of a request that holds no slots by its having no ``kv``
        allocated = 0 if request.kv is None else int(request.kv.kv_allocated_len)
    node = getattr(request.lock, "node", None) if hasattr(request, "lock") else request.last_node
    counts = own.cache_protected_len, own.kv_committed_len, allocated
    return Held(request.rid, own.req_pool_idx, *counts, node, ids_of(request))


def booked(scheduler: Any, requests: Sequence[Any]) -> dict[str, Any]:
    """The books of a scheduler, as ``base.Session.books`` has them. ``requests``: those that are booked."""
    pool, allocator, tree = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator, scheduler.tree_cache
    chunked = scheduler.chunked_req
    queues = scheduler.waiting_queue, scheduler.running_batch.reqs, [] if chunked is None else [chunked]
    kept = [held(each) for each in requests]
    sizes = tree.total_size(), tree.evictable_size(), tree.protected_size()
    return {
        "queues": [[each.rid for each in queue] for queue in queues],
        "requests": [
            [one.rid, one.row is not None, one.protected, one.committed, one.allocated, *_told(each)]
            for one, each in zip(kept, requests, strict=True)
        ],
        "radix tree": [0] if getattr(tree, "disable", False) else list(sizes),
        "free slots and rows": [int(free_pages(full_pool(allocator)).numel()), len(pool.free_slots)],
    }


def _told(request: Any) -> list[Any]:
    """What a request has come to."""
    return [request.retraction_count, list(request.output_ids), type(request.finished_reason).__name__]


def ids_of(request: Any) -> list[int]:
    """All tokens of a request, prompt and output."""
    return [*request.origin_input_ids, *request.output_ids]


def violated(scheduler: Any, ended: Sequence[Any] = ()) -> list[str]:
    """The laws that do not hold now, each ``law: what``. ``ended``: requests that have come to their end since these
    last were asked."""
    requests = holders(scheduler)
    pool, both, tree = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator, scheduler.tree_cache
    allocator = full_pool(both)
    page, cells = allocator.page_size, pool.req_to_token
    cached = _cached(tree)
    parts = [("free", free_pages(allocator)), ("cached", torch.unique(cached // page))]
    for each in requests:  # beside those that the tree has
        parts.append((each.rid, torch.unique(cells[each.row, each.protected : each.allocated].cpu() // page)))
    return [
        *_ownership(parts, allocator.size // page),
        *_rows(pool, requests),
        *_liveness(requests, cells, page, allocator.size),
        *_reserve(requests, {each.rid for each in getattr(scheduler.running_batch, "reqs", ())}),
        *_locks(tree, cached, requests),
        *_reuse(tree, requests, cells),
        *_kept(tree, ended, page),
        *_windows(both, requests, cells, tree),
        *violated_states(pool, [*requests_of(scheduler), *scheduler.waiting_queue], tree),
    ]


def free_pages(allocator: Any) -> Tensor:
    """The pages that are listed as free, on the host; as often as they are listed."""
    if every := getattr(allocator, "get_all_free_pages", None):
        pages: Tensor = every()
    else:
        pages = torch.cat([each for each in (allocator.free_pages, allocator.release_pages) if each is not None])
    return pages.cpu()


def _cached(tree: Any) -> Tensor:
    """The slots in the radix tree."""
    size = 0 if getattr(tree, "disable", False) else tree.total_size()  # of some trees with that of other state
    if not (size[0] if isinstance(size, tuple) else size):
        return torch.empty(0, dtype=torch.int64)
    slots: Tensor = tree.all_values_flatten().cpu()
    return slots


def _ownership(parts: Sequence[tuple[str, Tensor]], pages: int) -> Iterator[str]:
    """Every page has one owner. Page 0 is for padding."""
    owners = torch.zeros(pages + 1, dtype=torch.int64)
    for label, own in parts:
        outside = own[(own < 1) | (own > pages)]
        if outside.numel():
            yield f"liveness: {label} holds page {int(outside[0])}, outside the pool"
        owners += torch.bincount(own[(own >= 1) & (own <= pages)].long(), minlength=pages + 1)
    shared, lost = (owners > 1).nonzero().flatten(), (owners[1:] == 0).nonzero().flatten() + 1
    if shared.numel():
        first = int(shared[0])
        who = " and ".join(label for label, own in parts for _ in range(int((own == first).sum())))
        yield f"ownership: page {first} has {int(owners[first])} owners: {who}"
    if lost.numel():
        yield f"ownership: {lost.numel()} pages have no owner (first: {int(lost[0])})"


def _windows(allocator: Any, requests: Sequence[Held], req_to_token: Tensor, tree: Any) -> Iterator[str]:
    if hasattr(allocator, MAP):
        free = free_pages(allocator.full_attn_allocator), free_pages(allocator.swa_attn_allocator)
        rows = [(each.rid, req_to_token[each.row, : each.committed].cpu().long()) for each in requests]
        yield from violated_windows(allocator, *free, rows, tree.sliding_window_size)


def _rows(pool: Any, requests: Sequence[Held]) -> Iterator[str]:
    """Every row is free or held by one request. Row 0 is for padding."""
    claims: dict[int, list[str]] = {row: [] for row in range(1, pool.req_to_token.shape[0])}
    for row, by in (*((row, "the free list") for row in pool.free_slots), *((each.row, each.rid) for each in requests)):
        claims.setdefault(int(row), []).append(by)
    for row, every in claims.items():
        if not every:
            yield f"rows: row {row} is lost: neither free nor held by a request that prefills or runs"
        elif len(every) > 1:
            yield f"rows: row {row} is held by {' and '.join(every)}"


def _liveness(requests: Sequence[Held], req_to_token: Tensor, page: int, size: int) -> Iterator[str]:
    """Every position with KV has a real slot."""
    for each in requests:
        cells = req_to_token[each.row, : each.committed]
        dead = ((cells < page) | (cells >= size + page)).nonzero()
        if dead.numel():
            at = int(dead[0])
            yield f"liveness: {each.rid} position {at} of {each.committed} points to slot {int(cells[at])}"


def _reserve(requests: Sequence[Held], running: Container[str]) -> Iterator[str]:
    """Every position with KV has a token, and of what runs all tokens but the newest have KV. Some releases claim the
    newest one's when they launch its verify."""
    for each in requests:
        most = len(each.ids)
        if each.committed > most or (each.rid in running and each.committed < most - 1):
            yield f"reserve: {each.rid} has committed {each.committed} positions of {most} tokens"
        if each.allocated < each.committed:
            yield f"reserve: {each.rid} has slots for {each.allocated} of {each.committed} positions"


def _locks(tree: Any, cached: Tensor, requests: Sequence[Held]) -> Iterator[str]:
    """Evictable and protected add up to what is cached; a node's lock_ref counts the requests that read it, where the
    tree is one of nodes."""
    if getattr(tree, "disable", False):
        return
    total = tree.evictable_size() + tree.protected_size()
    if total != cached.numel():
        yield f"locks: evictable + protected = {total}, cached = {cached.numel()}"
    if not requests and tree.protected_size():
        yield f"locks: {tree.protected_size()} slots are protected, and no request runs"
    if (root := root_of(tree)) is None:
        return
    readers: dict[int, list[str]] = {}
    for each in requests:
        node = each.node
        while node is not None and node is not root:
            readers.setdefault(node.id, []).append(each.rid)
            node = node.parent
    for node in nodes_below(root):
        rids = readers.get(node.id, [])
        if node.lock_ref != len(rids):
            who = f": {', '.join(rids)}" if rids else ""
            yield f"locks: radix node {node.id} has lock_ref {node.lock_ref}, {len(rids)} requests read it{who}"


def _reuse(tree: Any, requests: Sequence[Held], cells: Tensor) -> Iterator[str]:
    """What a request has from the tree was computed of its own tokens, with that behind them where keys are of pairs;
    and its row has the tree's slots."""
    root = root_of(tree)
    for each in requests if root is not None else ():
        path, node = list[Any](), each.node
        while node is not None and node is not root:
            path.insert(0, node)
            node = node.parent
        if each.node is None:
            continue
        slots = [slot for one in path for slot in one.value.tolist()]
        tokens = [token for one in path for token in key_of(one)[: len(one.value)]]
        tokens += key_of(path[-1])[len(path[-1].value) :] if path else []
        if each.protected != len(slots):
            yield f"reuse: {each.rid} has {each.protected} positions of the tree's, and {len(slots)} lead to its node"
        elif tokens != each.ids[: len(tokens)]:
            at = _alike(tokens, each.ids)
            yield f"reuse: {each.rid} has {each.protected} positions of the tree's, where token {at} is another"
        elif (at := _alike(cells[each.row, : each.protected].tolist(), slots)) < len(slots):
            yield f"reuse: {each.rid} position {at} is not in the slot that the tree has it in"


def _kept(tree: Any, ended: Sequence[Any], page: int) -> Iterator[str]:
    """Whole pages of what a request computed are in the tree when it has ended: of all positions but its newest
    token's, and where keys are of pairs but one more."""
    root = root_of(tree)
    for request in () if root is None or tree.disable or tree.disable_finished_insert else ended:
        ids = [*request.origin_input_ids, *request.output_ids_through_stop]
        due, there = (max(len(ids) - 1 - tree.is_eagle, 0) // page * page, _matched(root, ids, int(tree.is_eagle)))
        if there < due:
            yield f"kept: {request.rid} has ended, and the tree has {there} of the {due} positions it computed"


def _matched(node: Any, ids: Sequence[int], beyond: int) -> int:
    """How many slots below a node are of these tokens. ``beyond``: tokens that a key has behind its slots."""
    found = 0
    for child in node.children.values():
        tokens, slots = key_of(child), len(child.value)
        same = _alike(tokens, ids)
        found = max(found, slots + _matched(child, ids[slots:], beyond) if same == len(tokens) else same - beyond)
    return found


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading items of two sequences are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def key_of(node: Any) -> list[int]:
    """The tokens of a node, and where keys are of pairs the one behind them."""
    return list(node.key.token_ids)


def root_of(tree: Any) -> Any:
    """The root of a radix tree of nodes that count their locks; None of any other, such as 0.5.23's in Rust."""
    try:
        root = tree.root_node
    except (AttributeError, NotImplementedError):
        return None
    return root if hasattr(root, "lock_ref") else None


def nodes_below(root: Any) -> Iterator[Any]:
    """Every node below the root."""
    waiting = list(root.children.values())
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()

"""Conservation laws of SGLang's pools: slots, rows and locks, added up after each batch whose results are in.

They are the laws of our own engine (``engine/memory/laws.py``), over what SGLang keeps: pages that are free, in
the radix tree, or a request's own; rows of ``req_to_token``; and how many requests lock each node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from specdebug.targets.inside.guard import EngineLook
from specdebug.targets.inside.words import tell
from specdebug.targets.inside.wrapping import wrap_method
from specdebug.targets.sglang.inside.batches import TAKE
from specdebug.targets.sglang.inside.requests import Held, holders
from specdebug.targets.sglang.inside.seats import Seat

BOOKS = "the books of the memory pools"
NEEDED = tuple(
    Seat(BOOKS, places)
    for places in (
        ("srt.managers.scheduler:Scheduler.req_to_token_pool",),
        ("srt.managers.scheduler:Scheduler.token_to_kv_pool_allocator",),
        ("srt.managers.scheduler:Scheduler.tree_cache",),
        ("srt.mem_cache.memory_pool:ReqToTokenPool.free_slots",),
        ("srt.mem_cache.memory_pool:ReqToTokenPool.req_to_token",),
        (
            "srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator.get_all_free_pages",
            "srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator.free_pages",
        ),
        *((f"srt.mem_cache.radix_cache:RadixCache.{name}",) for name in
          ("total_size", "all_values_flatten", "evictable_size", "protected_size")),
    )
)  # fmt: skip
"""The fields that are read beside the requests."""
MOST_TOLD = 20
"""Violations of a process that are told; a leak is one after every batch."""


def keep_books() -> None:
    """Tell of each violated law once, with the number of the scheduler's batch. Raises NoSeat."""
    told: set[str] = set()
    batches = 0

    def process_batch_result(call: Callable[..., Any], scheduler: Any, *args: Any, **named: Any) -> Any:
        nonlocal batches
        answer = call(*args, **named)
        batches += 1
        for problem in violated(scheduler):
            if problem not in told and len(told) < MOST_TOLD:
                told.add(problem)
                tell(pid=os.getpid(), law=problem, batch=batches)
        return answer

    wrap_method(*TAKE.find(), process_batch_result, EngineLook(BOOKS))


def violated(scheduler: Any) -> list[str]:
    """The laws that do not hold now, each ``law: what``."""
    requests = holders(scheduler)
    pool, allocator, tree = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator, scheduler.tree_cache
    page = allocator.page_size
    cached = _cached(tree)
    parts = [("free", free_pages(allocator)), ("cached", _pages(cached, page))]
    parts += [(each.rid, _own_pages(each, pool.req_to_token, page)) for each in requests]
    return [
        *_ownership(parts, allocator.size // page),
        *_rows(pool, requests),
        *_liveness(requests, pool.req_to_token, page, allocator.size),
        *_locks(tree, cached, requests),
    ]


def free_pages(allocator: Any) -> Tensor:
    """The pages that are listed as free, on the host; as often as they are listed."""
    if every := getattr(allocator, "get_all_free_pages", None):
        pages: Tensor = every()
    else:
        pages = torch.cat([each for each in (allocator.free_pages, allocator.release_pages) if each is not None])
    return pages.cpu()


def _pages(slots: Tensor, page: int) -> Tensor:
    pages: Tensor = torch.unique(slots // page)
    return pages


def _own_pages(one: Held, req_to_token: Tensor, page: int) -> Tensor:
    """The pages of a request beside those that the tree has."""
    return _pages(req_to_token[one.row, one.protected : one.allocated].cpu(), page)


def _cached(tree: Any) -> Tensor:
    """The slots in the radix tree."""
    if getattr(tree, "disable", False):
        return torch.empty(0, dtype=torch.int64)
    size = tree.total_size()  # of some trees with that of other state
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


def _rows(pool: Any, requests: Sequence[Held]) -> Iterator[str]:
    """Every row is free or held by one request. Row 0 is for padding."""
    claims: dict[int, list[str]] = {row: [] for row in range(1, pool.req_to_token.shape[0])}
    for row in pool.free_slots:
        claims.setdefault(int(row), []).append("the free list")
    for each in requests:
        claims.setdefault(int(each.row), []).append(each.rid)
    for row, by in claims.items():
        if not by:
            yield f"rows: row {row} is lost: neither free nor held by a request that prefills or runs"
        elif len(by) > 1:
            yield f"rows: row {row} is held by {' and '.join(by)}"


def _liveness(requests: Sequence[Held], req_to_token: Tensor, page: int, size: int) -> Iterator[str]:
    """Every position with KV has a real slot."""
    for each in requests:
        cells = req_to_token[each.row, : each.committed]
        dead = ((cells < page) | (cells >= size + page)).nonzero()
        if dead.numel():
            at = int(dead[0])
            yield f"liveness: {each.rid} position {at} of {each.committed} points to slot {int(cells[at])}"


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

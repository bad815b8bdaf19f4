"""Conservation laws of slots, rows, locks and the order of eviction. They hold after every step; a violation names the
law, what breaks it and who holds that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from specdebug.engine.textbook.memory.allocator import SlotAllocator
from specdebug.engine.textbook.memory.prefix_cache import PrefixCache, own_slots
from specdebug.engine.textbook.memory.radix_cache import RadixCache, TreeNode
from specdebug.engine.textbook.memory.req_to_token import PADDING_ROW, ReqToToken
from specdebug.engine.textbook.request import Request, Status


def check_pools(cache: PrefixCache, holders: Iterable[Request]) -> list[str]:
    """Violated laws as ``"<law>: <detail>"``; an empty list when all hold.

    ownership: free + cached + held = N, no slot has two owners, and the allocator lists each free page once. liveness:
    every row cell below the committed length is a real slot, and of the cached prefix the tree's. rows: every row is
    free or held by one request. locks: evictable + protected = cached, and a node's ``lock_ref`` counts the requests
    that read it. order: a node was used no earlier than its children, and all that may be evicted is listed for that.
    """
    problems: list[str] = []
    allocator = cache.memory.allocator
    page = allocator.page_size
    holders = list(holders)
    nodes = list(cache.radix.nodes())
    cached = cache.radix.all_slots()
    held = [(request.rid, own_slots(request, cache.req_to_token)) for request in holders]
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
    problems += _free_list(allocator)
    problems += _rows(cache.req_to_token, holders)
    if cache.radix.total_size != cached.numel():
        problems.append(f"locks: evictable + protected = {cache.radix.total_size}, cached = {cached.numel()}")
    else:
        problems += _sizes(cache.radix, nodes)
    problems += _locks(nodes, holders)
    problems += _order(cache.radix, nodes)
    for request in holders:
        cells = cache.req_to_token.slots(request.row, 0, request.kv_len)
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
    for row in table.free_rows:
        claims.setdefault(row, []).append("the free list")
    for request in holders:
        claims.setdefault(request.row, []).append(request.rid)
    for row, by in claims.items():
        if row not in table.rows:
            what = "which pads batches" if row == PADDING_ROW else "which there is not"
            yield f"rows: {' and '.join(by)} holds row {row}, {what}"
        elif not by:
            yield f"rows: row {row} is lost: neither free nor held by a request that prefills or runs"
        elif len(by) > 1:
            yield f"rows: row {row} is held by {' and '.join(by)}"


def _sizes(radix: RadixCache, nodes: Sequence[TreeNode]) -> Iterator[str]:
    evictable = sum(len(node.key) for node in nodes if node.lock_ref == 0)
    if radix.evictable_size != evictable:
        yield f"locks: evictable = {radix.evictable_size}, but nodes without a lock hold {evictable} slots"


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
    path = [node.slots for node in request.node.path()]
    tree = torch.cat([cells[:0], *reversed(path)])
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
        self._leaves: dict[int, int] = {}
        """By serial of a leaf that could be evicted at the last look: when it had been used."""
        self._newest = self._last_made = 0
        """When any node had been used last, and the highest serial of a node, up to the last look."""

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

"""Conservation laws of the slot pool. They hold after every step; a violation names the law and the slots."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from specdebug.engine.memory.prefix_cache import PrefixCache, own_slots
from specdebug.engine.request import Request


def check_pools(cache: PrefixCache, holders: Iterable[Request]) -> list[str]:
    """Violated laws as ``"<law>: <detail>"``; an empty list when all hold.

    ownership: free + cached + held = N and no slot has two owners. liveness: every row cell below the committed length
    is a real slot. locks: evictable + protected = cached.
    """
    problems: list[str] = []
    allocator = cache.memory.allocator
    page = allocator.page_size
    holders = list(holders)
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
    if cache.radix.total_size != cached.numel():
        problems.append(f"locks: evictable + protected = {cache.radix.total_size}, cached = {cached.numel()}")
    for request in holders:
        cells = cache.req_to_token.slots(request.row, 0, request.kv_len)
        dead = ((cells < page) | (cells >= owners.numel())).nonzero()
        if dead.numel():
            at = int(dead[0])
            problems.append(f"liveness: {request.rid} position {at} of {request.kv_len} points outside the pool")
    return problems

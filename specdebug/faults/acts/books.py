"""Damage to the books: slots freed too early, twice, or while others own them; locks; an empty pool."""

from __future__ import annotations

from specdebug.faults.shot import NotHere, Shot, fault_class

FAMILY = "books"


@fault_class(FAMILY, "before", "corrupts")
def slot_used_after_free(shot: Shot) -> None:
    """A page of a running request is released, and poisoned if the fill poisons, while its row still names it."""
    import torch

    among = [each for each in shot.batch if each.protected_len < each.kv_allocated]
    request = shot.pick(among, "no request with slots of its own runs")
    stop = max(request.kv_len, request.protected_len + 1)  # of a committed position, else of a reserved one
    slot = shot.view.slot(request, shot.rng.randrange(request.protected_len, stop))
    memory = shot.view.memory
    page = slot // shot.view.config.page_size
    before = memory.allocator.owns(page)
    memory.free(torch.tensor([slot]))
    shot.note("allocator.owned", (page,), before, memory.allocator.owns(page))


@fault_class(FAMILY, "free", "corrupts", addressed_by=())
def slot_freed_twice(shot: Shot) -> None:
    """Slots that the engine releases are released a second time at once."""
    (slots,) = shot.wrapped.args
    if not slots.numel():
        raise NotHere("the engine released nothing")
    shot.note("released", (int(slots.reshape(-1)[0]),), 1, 2, count=slots.numel())
    shot.wrapped.proceed()
    shot.wrapped.proceed()


@fault_class(FAMILY, "before", "corrupts", needs=("reserve",))
def generation_mismatch(shot: Shot) -> None:
    """A page of a running request is released and handed to another one: both write it now."""
    others = [each for each in shot.batch if each.kv_allocated > each.kv_len]
    if len(others) < 2:
        raise NotHere("no two requests with reserved slots run")
    request = shot.pick([each for each in others if each.protected_len < each.kv_allocated])
    other = shot.rng.choice([each for each in others if each is not request])
    page = shot.view.config.page_size
    last = request.kv_allocated - page
    theirs = other.kv_allocated - page
    for offset in range(page):
        slot = shot.view.slot(request, last + offset)
        shot.edit(shot.view.table, (other.row, theirs + offset), slot, "req_to_token")


@fault_class(FAMILY, "before", "corrupts", addressed_by=())
def slots_leaked(shot: Shot) -> None:
    """Half of the free slots are taken and never given back."""
    memory = shot.view.memory
    page = shot.view.config.page_size
    taken = memory.allocator.num_free // 2 // page * page
    if not taken:
        raise NotHere("there are no free slots to take")
    before = memory.allocator.num_free
    memory.alloc(taken)
    shot.note("allocator.num_free", (), before, memory.allocator.num_free)


@fault_class(FAMILY, "before", "benign", addressed_by=())
def pool_exhausted(shot: Shot) -> None:
    """For one step nothing is free: a request that needs slots must wait, evict, or set another request back."""
    if len(shot.batch) < 2:
        raise NotHere("fewer than two requests run: none could make room")
    memory = shot.view.memory
    before = memory.allocator.num_free
    taken = memory.alloc(before)
    assert taken is not None  # there are that many
    shot.after_step.append(lambda: memory.free(taken))
    shot.note("allocator.num_free", (), before, memory.allocator.num_free)


@fault_class(FAMILY, "after", "corrupts", needs=("radix",), addressed_by=())
def cache_lock_lost(shot: Shot) -> None:
    """A cached prefix that a request reads is counted as evictable."""
    radix = shot.view.cache.radix
    locked = [node for node in radix.nodes() if node.lock_ref]
    if not locked:
        raise NotHere("no cached prefix is read")
    size = len(shot.rng.choice(locked).key)
    before = radix.evictable_size
    radix.evictable_size += size
    shot.note("radix.evictable_size", (), before, radix.evictable_size)

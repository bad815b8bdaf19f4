"""Damage to what requests hold: keys and values, the rows that name their slots, the books of slots and locks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdebug.faults.model import NotHere, Shot, fault_class

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.engine.memory.kv_pool import KVPool
    from specdebug.engine.textbook.request import Request

WRITTEN = ("kv_pool.write.k", "kv_pool.write.v")
TABLE = "req_to_token"


@fault_class("kv", "before", "corrupts")
def nan_kv_in_use(shot: Shot) -> None:
    """One element of a running request's committed target KV becomes NaN."""
    _put(shot, shot.view.memory.target, "target_kv", math.nan)


@fault_class("kv", "before", "corrupts")
def inf_kv_in_use(shot: Shot) -> None:
    """One element of a running request's committed target KV becomes infinite."""
    _put(shot, shot.view.memory.target, "target_kv", math.inf)


@fault_class("kv", "before", "corrupts")
def bit_flip_kv_in_use(shot: Shot) -> None:
    """The highest exponent bit of one element of a running request's committed target KV is flipped."""
    _flip(shot, *_element(shot, shot.view.memory.target, "target_kv"))


@fault_class("kv", "before", "benign")
def denormal_kv_in_use(shot: Shot) -> None:
    """The element of a committed position that is nearest to zero becomes a denormal number."""
    import torch

    pool = shot.view.memory.target
    _, (slot, _, _), _ = _element(shot, pool, "target_kv")
    # Of one layer's few numbers even the smallest may matter.
    layers = range(pool.num_layers)
    sides = {f"target_kv.{'kv'[n]}[{layer}]": pool.kv_buffer(layer)[n] for n in range(2) for layer in layers}
    name, tensor = min(sides.items(), key=lambda each: float(each[1][slot].abs().min()))
    nearest = int(tensor[slot].abs().argmin())
    width = tensor.shape[-1]
    shot.edit(tensor, (slot, nearest // width, nearest % width), torch.finfo(tensor.dtype).tiny / 4, name)


@fault_class("kv", "before", "corrupts", needs=("speculative", "draft_kv"))
def nan_draft_kv_in_use(shot: Shot) -> None:
    """One element of a running request's committed draft KV becomes NaN."""
    _put(shot, shot.view.draft_pool, "draft_kv", math.nan)


@fault_class("kv", "before", "corrupts", needs=("speculative", "draft_kv"))
def bit_flip_draft_kv_in_use(shot: Shot) -> None:
    """The highest exponent bit of one element of a running request's committed draft KV is flipped."""
    _flip(shot, *_element(shot, shot.view.draft_pool, "draft_kv"))


@fault_class("kv", "before", "benign", addressed_by=())
def nan_kv_unused(shot: Shot) -> None:
    """A slot without an owner holds NaN in every layer of both pools: its next owner must write before reading."""
    free = shot.view.memory.allocator.free_slots()
    if not free.numel():
        raise NotHere("every slot is owned")
    slot = int(free[shot.rng.randrange(free.numel())])
    for name, pool in shot.view.pools():
        _fill(shot, pool, name, slot, math.nan)


@fault_class("kv", "site", "corrupts", sites=WRITTEN)
def nan_kv_after_forward(shot: Shot) -> None:
    """One element of what a forward has just written becomes NaN."""
    shot.edit(shot.site.tensor, _just_written(shot), math.nan, _pool_name(shot))


@fault_class("kv", "site", "corrupts", sites=WRITTEN)
def bit_flip_kv_after_forward(shot: Shot) -> None:
    """The highest exponent bit of one element of what a target forward has just written is flipped."""
    if _pool_name(shot).startswith("draft"):
        raise NotHere("no target forward has written")
    _flip(shot, shot.site.tensor, _just_written(shot), _pool_name(shot))


@fault_class("kv", "site", "corrupts", sites=WRITTEN, needs=("speculative", "draft_kv"))
def draft_kv_not_written(shot: Shot) -> None:
    """KV that a draft prefill has just written is taken back: its slots hold zeros, as if it had never run."""
    if _pool_name(shot).startswith("target"):
        raise NotHere("no draft prefill has written")
    slots = _own(shot, shot.pick([each for each in shot.batch if not each.output_ids], "no request is prefilled"))
    for layer, rows in enumerate(shot.site.tensor):
        shot.overwrite(rows, slots, 0.0, f"{_pool_name(shot)}[{layer}]")


@fault_class("kv", "attach", "corrupts", needs=("speculative", "draft_kv", "radix"), addressed_by=("request",))
def target_only_restore(shot: Shot) -> None:
    """A cached prefix that is hit comes back from a host tier with its target KV only: its draft KV is zeros."""
    request = shot.pick(shot.wrapped.args)
    shot.wrapped.proceed()
    slots = shot.view.table[request.row, : request.protected_len].long()
    if not slots.numel() or not request.speculative:
        raise NotHere(f"{request.rid} hits no cached prefix")
    _fill(shot, shot.view.draft_pool, "draft_kv", slots, 0.0)


def _put(shot: Shot, pool: KVPool, pool_name: str, value: float) -> None:
    tensor, index, name = _element(shot, pool, pool_name)
    shot.edit(tensor, index, value, name)


def _fill(shot: Shot, pool: KVPool, pool_name: str, slots: Tensor | int, value: float) -> None:
    for layer in range(pool.num_layers):
        for side, tensor in zip("kv", pool.kv_buffer(layer), strict=True):
            shot.overwrite(tensor, slots, value, f"{pool_name}.{side}[{layer}]")


def _element(shot: Shot, pool: KVPool, pool_name: str) -> tuple[Tensor, tuple[int, int, int], str]:
    """One element of a committed position: the tensor of its layer, the index in that, and the tensor's name.

    The last positions, whose draft KV depends on tokens that may follow, are not counted: the next draft extend may
    write it.
    """
    open_end = shot.view.cache.beyond
    among = [each for each in shot.batch if each.kv_len > open_end]
    request = shot.pick(among, "no request with committed KV runs")
    position = shot.rng.randrange(request.kv_len - open_end)
    layer, side = shot.rng.randrange(pool.num_layers), shot.rng.choice("kv")
    tensor = pool.kv_buffer(layer)["kv".index(side)]
    _, heads, width = tensor.shape
    index = (shot.view.slot(request, position), shot.rng.randrange(heads), shot.rng.randrange(width))
    return tensor, index, f"{pool_name}.{side}[{layer}]"


def _flip(shot: Shot, tensor: Tensor, index: tuple[int, ...], name: str) -> None:
    import torch

    width = 8 * tensor.element_size()
    bits = tensor.view(getattr(torch, f"int{width}"))
    before = tensor[index].item()
    bits[index] ^= 1 << (width - 2)  # in every format the sign's bit comes first, then the exponent's
    shot.note(name, index, before, tensor[index].item())


def _pool_name(shot: Shot) -> str:
    """The name of the pool, and the side, that the site's tensor is of."""
    side = shot.site.site[-1]
    for name, pool in shot.view.pools():
        if pool.kv_buffer(0)[0].untyped_storage().data_ptr() == shot.site.tensor.untyped_storage().data_ptr():
            return f"{name}.{side}"
    raise NotHere(f"{shot.site.site} was reached for no pool of the engine")


def _just_written(shot: Shot) -> tuple[int, int, int, int]:
    """The index, in the site's tensor of all layers, of an element that the picked request wrote and keeps."""
    slot = int(_own(shot, shot.pick())[0])
    layers, _, heads, width = shot.site.tensor.shape
    return shot.rng.randrange(layers), slot, shot.rng.randrange(heads), shot.rng.randrange(width)


def _own(shot: Shot, request: Request) -> Tensor:
    """The slots written at the site that are cells of the request's row, in their order. Raises NotHere."""
    import torch

    assert shot.site.at is not None
    cells = shot.view.table[request.row, : request.kv_allocated].long()
    written = shot.site.at.reshape(-1).long()
    own = written[torch.isin(written, cells)]
    if not own.numel():
        raise NotHere(f"nothing of {request.rid} was written")
    return own


@fault_class("rows", "before", "corrupts", needs=("reserve",))
def req_to_token_swapped(shot: Shot) -> None:
    """A committed position's cell and that of a reserved one change places: what is read there was never written."""
    request, position = _position(shot, [each for each in shot.batch if each.kv_len < each.kv_allocated])
    reserved = shot.rng.randrange(request.kv_len, request.kv_allocated)
    cell, other = shot.view.slot(request, position), shot.view.slot(request, reserved)
    shot.edit(shot.view.table, (request.row, position), other, TABLE)
    shot.edit(shot.view.table, (request.row, reserved), cell, TABLE)


@fault_class("rows", "before", "corrupts")
def req_to_token_flipped(shot: Shot) -> None:
    """One bit of a committed position's cell is flipped: it names another slot of the pool."""
    request, position = _position(shot)
    cell, slots = shot.view.slot(request, position), shot.view.memory.target.size
    others = [cell ^ (1 << bit) for bit in range(16) if cell ^ (1 << bit) < slots]
    shot.edit(shot.view.table, (request.row, position), shot.rng.choice(others), TABLE)


@fault_class("rows", "before", "corrupts")
def req_to_token_out_of_range(shot: Shot) -> None:
    """A committed position's cell names a slot behind the pool."""
    request, position = _position(shot)
    beyond = shot.view.memory.target.size + shot.rng.randrange(100)
    shot.edit(shot.view.table, (request.row, position), beyond, TABLE)


@fault_class("rows", "before", "corrupts")
def req_to_token_of_another(shot: Shot) -> None:
    """A committed position's cell names a slot of another request."""
    request, position = _position(shot)
    others = [each for each in shot.batch if each is not request and each.kv_allocated]
    if not others:
        raise NotHere("no other request runs")
    other = shot.rng.choice(others)
    slot = shot.view.slot(other, shot.rng.randrange(other.protected_len, other.kv_allocated))
    shot.edit(shot.view.table, (request.row, position), slot, TABLE)


@fault_class("rows", "before", "corrupts", needs=("tree", "pages"))
def misaligned_loc(shot: Shot) -> None:
    """The first cell of the page that a prefix ends in names a slot that begins no page."""
    page = shot.view.config.page_size
    among = [each for each in shot.batch if each.speculative and each.kv_len % page]
    request = shot.pick(among, "no prefix of a request that speculates ends inside a page")
    first = request.kv_len - request.kv_len % page
    shot.edit(shot.view.table, (request.row, first), shot.view.slot(request, first) + 1, TABLE)


@fault_class("rows", "release", "corrupts", needs=("pages", "radix"), addressed_by=("request",))
def misaligned_release(shot: Shot) -> None:
    """The slots that a request gives back begin with a slot that begins no page."""
    page = shot.view.config.page_size
    request = shot.pick(shot.wrapped.args)
    settled = request.kv_len + 1 - shot.view.cache.beyond
    cached = settled - settled % page if shot.wrapped.options["keep"] else 0
    first = max(request.protected_len, cached)
    if first >= request.kv_allocated:
        raise NotHere(f"{request.rid} has nothing to give back")
    shot.edit(shot.view.table, (request.row, first), shot.view.slot(request, first) + 1, TABLE)


@fault_class("rows", "before", "corrupts", needs=("guards",))
def row_overrun(shot: Shot) -> None:
    """A cell behind the end of a request's row is written, as a reservation longer than the row would."""
    request = shot.pick(why="no request runs")
    shot.edit(shot.view.req_to_token.cells, (request.row, shot.view.table.shape[1]), 1, TABLE)


@fault_class("rows", "before", "corrupts", needs=("speculative", "graphs", "guards", "ragged"), addressed_by=())
def buffer_overrun(shot: Shot) -> None:
    """The word behind a draft runner's static kv_indices is written, as by a list that is too long."""
    buffers = shot.view.buffers("draft" if shot.view.eagle.runners.draft is not None else "extend")
    name = "draft.kv_indices" if shot.view.spec.drafting == "head" else "extend.kv_indices"
    buffer = buffers[name]
    beyond = buffer.as_strided((1,), (1,), buffer.storage_offset() + buffer.numel())
    shot.edit(beyond, (0,), 1, f"{name}+0")


def _position(shot: Shot, among: Sequence[Request] | None = None) -> tuple[Request, int]:
    """A request that decodes, and one of its committed positions, of slots of its own if it has any."""
    running = shot.batch if among is None else among
    request = shot.pick([each for each in running if each.kv_len], "no request with committed KV runs")
    return request, shot.rng.randrange(min(request.protected_len, request.kv_len - 1), request.kv_len)


@fault_class("books", "before", "corrupts")
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


@fault_class("books", "free", "corrupts", addressed_by=())
def slot_freed_twice(shot: Shot) -> None:
    """Slots that the engine releases are released a second time at once."""
    (slots,) = shot.wrapped.args
    if not slots.numel():
        raise NotHere("the engine released nothing")
    shot.note("released", (int(slots.reshape(-1)[0]),), 1, 2, count=slots.numel())
    shot.wrapped.proceed()
    shot.wrapped.proceed()


@fault_class("books", "before", "corrupts", needs=("reserve",))
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


@fault_class("books", "before", "corrupts", addressed_by=())
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


@fault_class("books", "before", "benign", addressed_by=())
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


@fault_class("books", "after", "corrupts", needs=("radix",), addressed_by=())
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

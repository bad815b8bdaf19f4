"""Damage to keys and values: in slots that are read, in slots that are not, and right after they were written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specdebug.faults.shot import NotHere, Shot, fault_class

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.engine.memory.kv_pool import KVPool
    from specdebug.engine.textbook.request import Request

FAMILY = "kv"

WRITTEN = ("kv_pool.write.k", "kv_pool.write.v")


@fault_class(FAMILY, "before", "corrupts")
def nan_kv_in_use(shot: Shot) -> None:
    """One element of a running request's committed target KV becomes NaN."""
    _put(shot, shot.view.memory.target, "target_kv", math.nan)


@fault_class(FAMILY, "before", "corrupts")
def inf_kv_in_use(shot: Shot) -> None:
    """One element of a running request's committed target KV becomes infinite."""
    _put(shot, shot.view.memory.target, "target_kv", math.inf)


@fault_class(FAMILY, "before", "corrupts")
def bit_flip_kv_in_use(shot: Shot) -> None:
    """The highest exponent bit of one element of a running request's committed target KV is flipped."""
    _flip(shot, *_element(shot, shot.view.memory.target, "target_kv"))


@fault_class(FAMILY, "before", "benign")
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


@fault_class(FAMILY, "before", "corrupts", needs=("speculative", "draft_kv"))
def nan_draft_kv_in_use(shot: Shot) -> None:
    """One element of a running request's committed draft KV becomes NaN."""
    _put(shot, shot.view.draft_pool, "draft_kv", math.nan)


@fault_class(FAMILY, "before", "corrupts", needs=("speculative", "draft_kv"))
def bit_flip_draft_kv_in_use(shot: Shot) -> None:
    """The highest exponent bit of one element of a running request's committed draft KV is flipped."""
    _flip(shot, *_element(shot, shot.view.draft_pool, "draft_kv"))


@fault_class(FAMILY, "before", "benign", addressed_by=())
def nan_kv_unused(shot: Shot) -> None:
    """A slot without an owner holds NaN in every layer of both pools: its next owner must write before reading."""
    free = shot.view.memory.allocator.free_slots()
    if not free.numel():
        raise NotHere("every slot is owned")
    slot = int(free[shot.rng.randrange(free.numel())])
    for name, pool in shot.view.pools():
        _fill(shot, pool, name, slot, math.nan)


@fault_class(FAMILY, "site", "corrupts", sites=WRITTEN)
def nan_kv_after_forward(shot: Shot) -> None:
    """One element of what a forward has just written becomes NaN."""
    shot.edit(shot.site.tensor, _just_written(shot), math.nan, _pool_name(shot))


@fault_class(FAMILY, "site", "corrupts", sites=WRITTEN)
def bit_flip_kv_after_forward(shot: Shot) -> None:
    """The highest exponent bit of one element of what a target forward has just written is flipped."""
    if _pool_name(shot).startswith("draft"):
        raise NotHere("no target forward has written")
    _flip(shot, shot.site.tensor, _just_written(shot), _pool_name(shot))


@fault_class(FAMILY, "site", "corrupts", sites=WRITTEN, needs=("speculative", "draft_kv"))
def draft_kv_not_written(shot: Shot) -> None:
    """KV that a draft prefill has just written is taken back: its slots hold zeros, as if it had never run."""
    if _pool_name(shot).startswith("target"):
        raise NotHere("no draft prefill has written")
    slots = _own(shot, shot.pick([each for each in shot.batch if not each.output_ids], "no request is prefilled"))
    for layer, rows in enumerate(shot.site.tensor):
        shot.overwrite(rows, slots, 0.0, f"{_pool_name(shot)}[{layer}]")


@fault_class(FAMILY, "attach", "corrupts", needs=("speculative", "draft_kv", "radix"), addressed_by=("request",))
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

"""Damage to keys and values: in slots that are read, in slots that are not, and right after they were written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specdebug.faults.registry import fault_class
from specdebug.faults.shot import NotHere, Shot

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.engine.memory.kv_pool import KVPool
    from specdebug.engine.request import Request

FAMILY = "kv"

WRITTEN = ("kv_pool.write.k", "kv_pool.write.v")

_INTEGERS = {2: "int16", 4: "int32", 8: "int64"}
"""Integer type of a float's size in bytes: its bits."""
_EXPONENT_TOP = {2: 14, 4: 30, 8: 62}
"""The exponent's highest bit. Of bfloat16 and float16 it is the same one."""


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
    tensor, name, index = _element(shot, shot.view.memory.target, "target_kv")
    _flip(shot, tensor, index, name)


@fault_class(FAMILY, "before", "benign")
def denormal_kv_in_use(shot: Shot) -> None:
    """The element of a committed position that is nearest to zero becomes a denormal number."""
    import torch

    pool = shot.view.memory.target
    _, _, (slot, _, _) = _element(shot, pool, "target_kv")
    # Of one layer's few numbers even the smallest may matter.
    layers = range(pool.num_layers)
    sides = {f"target_kv.{'kv'[n]}[{layer}]": pool.kv_buffer(layer)[n] for n in range(2) for layer in layers}
    name, tensor = min(sides.items(), key=lambda each: float(each[1][slot].abs().min()))
    nearest = int(tensor[slot].abs().argmin())
    width = tensor.shape[-1]
    shot.edit(tensor, (slot, nearest // width, nearest % width), torch.finfo(tensor.dtype).tiny / 4, name)


@fault_class(FAMILY, "before", "corrupts", needs=("speculative",))
def nan_draft_kv_in_use(shot: Shot) -> None:
    """One element of a running request's committed draft KV becomes NaN."""
    _put(shot, shot.view.draft_pool, "draft_kv", math.nan)


@fault_class(FAMILY, "before", "corrupts", needs=("speculative",))
def bit_flip_draft_kv_in_use(shot: Shot) -> None:
    """The highest exponent bit of one element of a running request's committed draft KV is flipped."""
    tensor, name, index = _element(shot, shot.view.draft_pool, "draft_kv")
    _flip(shot, tensor, index, name)


@fault_class(FAMILY, "before", "benign", addressed_by=())
def nan_kv_unused(shot: Shot) -> None:
    """A slot that nobody owns holds NaN in every layer of both pools: whoever gets it must write before reading."""
    free = shot.view.memory.allocator.free_slots()
    if not free.numel():
        raise NotHere("every slot is owned")
    slot = int(free[shot.rng.randrange(free.numel())])
    for name, pool in shot.view.pools():
        for layer in range(pool.num_layers):
            k, v = pool.kv_buffer(layer)
            shot.overwrite(k, slot, math.nan, f"{name}.k[{layer}]")
            shot.overwrite(v, slot, math.nan, f"{name}.v[{layer}]")


@fault_class(FAMILY, "site", "corrupts", sites=WRITTEN)
def nan_kv_after_forward(shot: Shot) -> None:
    """One element of what a forward has just written becomes NaN."""
    tensor, index = _just_written(shot)
    shot.edit(tensor, index, math.nan, _pool_name(shot))


@fault_class(FAMILY, "site", "corrupts", sites=WRITTEN)
def bit_flip_kv_after_forward(shot: Shot) -> None:
    """The highest exponent bit of one element of what a target forward has just written is flipped."""
    if _pool_name(shot).startswith("draft"):
        raise NotHere("no target forward has written")
    tensor, index = _just_written(shot)
    _flip(shot, tensor, index, _pool_name(shot))


@fault_class(FAMILY, "site", "corrupts", sites=WRITTEN, needs=("speculative",))
def draft_kv_not_written(shot: Shot) -> None:
    """What a draft prefill has just written is taken back: its slots hold zeros, as if it had never run."""
    if _pool_name(shot).startswith("target"):
        raise NotHere("no draft prefill has written")
    tensor, at = shot.site.tensor, shot.site.at
    request = shot.pick([each for each in shot.batch if not each.output_ids], "no request is prefilled")
    slots = _own(shot, request, at)
    for layer in range(tensor.shape[0]):
        shot.overwrite(tensor[layer], slots, 0.0, f"{_pool_name(shot)}[{layer}]")


@fault_class(FAMILY, "attach", "corrupts", needs=("speculative", "radix"), addressed_by=("request",))
def target_only_restore(shot: Shot) -> None:
    """A cached prefix that is hit comes back from a host tier with its target KV only: its draft KV is zeros."""
    request = shot.pick(shot.wrapped.args)
    shot.wrapped.proceed()
    slots = shot.view.table[request.row, : request.protected_len].long()
    if not slots.numel() or not request.speculative:
        raise NotHere(f"{request.rid} hits no cached prefix")
    draft = shot.view.draft_pool
    for layer in range(draft.num_layers):
        k, v = draft.kv_buffer(layer)
        shot.overwrite(k, slots, 0.0, f"draft_kv.k[{layer}]")
        shot.overwrite(v, slots, 0.0, f"draft_kv.v[{layer}]")


def _put(shot: Shot, pool: KVPool, pool_name: str, value: float) -> None:
    tensor, name, index = _element(shot, pool, pool_name)
    shot.edit(tensor, index, value, name)


def _element(shot: Shot, pool: KVPool, pool_name: str) -> tuple[Tensor, str, tuple[int, int, int]]:
    """One element of a committed position: the tensor of its layer, that one's name, and the index in it.

    Draft KV of the last committed position is not counted: the next draft extend may write it.
    """
    among = [each for each in shot.batch if each.kv_len > 1]
    request = shot.pick(among, "no request with committed KV runs")
    position = shot.rng.randrange(request.kv_len - 1)
    layer, side = shot.rng.randrange(pool.num_layers), shot.rng.choice("kv")
    tensor = pool.kv_buffer(layer)["kv".index(side)]
    _, heads, width = tensor.shape
    index = (shot.view.slot(request, position), shot.rng.randrange(heads), shot.rng.randrange(width))
    return tensor, f"{pool_name}.{side}[{layer}]", index


def _flip(shot: Shot, tensor: Tensor, index: tuple[int, ...], name: str) -> None:
    import torch

    size = tensor.element_size()
    bits = tensor.view(getattr(torch, _INTEGERS[size]))
    before = tensor[index].item()
    bits[index] ^= 1 << _EXPONENT_TOP[size]
    shot.note(name, index, before, tensor[index].item())


def _pool_name(shot: Shot) -> str:
    """Whose keys or values the site's tensor is."""
    side = shot.site.site[-1]
    for name, pool in shot.view.pools():
        if pool.kv_buffer(0)[0].untyped_storage().data_ptr() == shot.site.tensor.untyped_storage().data_ptr():
            return f"{name}.{side}"
    raise NotHere(f"{shot.site.site} was reached for no pool of the engine")


def _just_written(shot: Shot) -> tuple[Tensor, tuple[int, ...]]:
    """A tensor of one pool, all layers, and an element of it in a slot that the picked request wrote and keeps."""
    tensor = shot.site.tensor
    request = shot.pick()
    slots = _own(shot, request, shot.site.at)
    slot = int(slots[0])
    layers, _, heads, width = tensor.shape
    index = (shot.rng.randrange(layers), slot, shot.rng.randrange(heads), shot.rng.randrange(width))
    return tensor, index


def _own(shot: Shot, request: Request, at: Tensor | None) -> Tensor:
    """Those of the slots ``at`` that are cells of the request's row, in their order. Raises NotHere."""
    import torch

    assert at is not None
    cells = shot.view.table[request.row, : request.kv_allocated].to(torch.int64)
    written = at.reshape(-1).to(torch.int64)
    own = written[torch.isin(written, cells)]
    if not own.numel():
        raise NotHere(f"nothing of {request.rid} was written")
    return own

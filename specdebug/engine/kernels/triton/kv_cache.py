"""Triton twins of :mod:`specdebug.engine.kernels.kv_cache`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_MAX_TILE = 2048


def write_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    count, heads, dim = k.shape
    if k.numel() == 0:
        return
    tile = min(triton.next_power_of_2(heads * dim), _MAX_TILE)
    _write_rows[(count, triton.cdiv(heads * dim, tile))](
        k_cache,
        v_cache,
        slots,
        k,
        v,
        k_cache.stride(0),
        slots.stride(0),
        *k.stride(),
        *v.stride(),
        HEADS=heads,
        DIM=dim,
        TILE=tile,
    )


def move_kv(buffers: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Read all rows in one launch and write them in another; pass over an entry that names one slot twice."""
    layers, count, size = buffers.shape[0], tgt_loc.numel(), buffers[0, 0].numel()
    if count == 0:
        return
    moved = torch.empty((layers, count, size), dtype=buffers.dtype, device=buffers.device)
    tile = min(triton.next_power_of_2(size), _MAX_TILE)
    grid = (count, layers, triton.cdiv(size, tile))
    strides = (*buffers.stride()[:2], tgt_loc.stride(0), src_loc.stride(0))
    for read in (True, False):
        _move_rows[grid](buffers, moved, tgt_loc, src_loc, *strides, SIZE=size, TILE=tile, READ=read)


@triton.jit
def _write_rows(
    k_cache,
    v_cache,
    slots,
    k,
    v,
    slot_stride,
    slots_step,
    k_row,
    k_head,
    k_dim,
    v_row,
    v_head,
    v_dim,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = element < HEADS * DIM
    head = element // DIM
    dim = element % DIM
    target = tl.load(slots + row * slots_step).to(tl.int64) * slot_stride + element
    keys = tl.load(k + row * k_row + head * k_head + dim * k_dim, mask=inside, other=0)
    values = tl.load(v + row * v_row + head * v_head + dim * v_dim, mask=inside, other=0)
    tl.store(k_cache + target, keys.to(k_cache.dtype.element_ty), mask=inside)
    tl.store(v_cache + target, values.to(v_cache.dtype.element_ty), mask=inside)


@triton.jit
def _move_rows(
    buffers,
    moved,
    targets,
    sources,
    layer_stride,
    slot_stride,
    targets_step,
    sources_step,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    READ: tl.constexpr,
):
    """Copy rows at ``sources`` to ``moved`` (READ), or ``moved`` to rows at ``targets``."""
    entry = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64)
    element = tl.program_id(2) * TILE + tl.arange(0, TILE)
    target = tl.load(targets + entry * targets_step).to(tl.int64)
    source = tl.load(sources + entry * sources_step).to(tl.int64)
    inside = (element < SIZE) & (target != source)
    between = moved + (layer * tl.num_programs(0) + entry) * SIZE + element
    pool = buffers + layer * layer_stride + element
    if READ:
        tl.store(between, tl.load(pool + source * slot_stride, mask=inside, other=0), mask=inside)
    else:
        tl.store(pool + target * slot_stride, tl.load(between, mask=inside, other=0), mask=inside)

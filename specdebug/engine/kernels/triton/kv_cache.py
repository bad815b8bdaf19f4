"""Triton twins of :mod:`specdebug.engine.kernels.kv_cache`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specdebug.engine.kernels.kv_cache import MTPRows

_MAX_TILE = 2048


def write_kv(k_cache, v_cache, slots, k, v):
    count, heads, dim = k.shape
    if k.numel():
        tile = min(triton.next_power_of_2(heads * dim), _MAX_TILE)
        strides = (k_cache.stride(0), slots.stride(0), *k.stride(), *v.stride())
        grid = (count, triton.cdiv(heads * dim, tile))
        _write_rows[grid](k_cache, v_cache, slots, k, v, *strides, HEADS=heads, DIM=dim, TILE=tile)


def move_kv(buffers, tgt_loc, src_loc):
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


def mtp_rows(input_ids, features, recent_ids, recent_hidden, req_pool_indices, seq_lens, accept_lengths):
    """One launch, a program for each row."""
    batch, earlier, size = seq_lens.numel(), recent_ids.shape[1], features.shape[1]
    width = earlier + (input_ids.numel() // batch if batch else 0)
    ids = {"dtype": torch.int64, "device": features.device}
    hidden = {"dtype": features.dtype, "device": features.device}
    rows = MTPRows(
        torch.empty(batch * width, **ids),
        torch.empty(batch * width, **ids),
        torch.empty((batch * width, size), **hidden),
        torch.empty(batch, **ids),
        torch.empty((batch, earlier), **ids),
        torch.empty((batch, earlier, size), **hidden),
    )
    if batch:
        tile = min(triton.next_power_of_2(size), _MAX_TILE)
        state = (recent_ids, recent_hidden, req_pool_indices, seq_lens, accept_lengths)
        grid = (batch * (width + earlier), triton.cdiv(size, tile))
        _gather[grid](input_ids, features, *state, *rows, *features.stride(), earlier, width, size, tile)
    return rows


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


@triton.jit
def _gather(
    input_ids,
    features,
    recent_ids,
    recent_hidden,
    req_pool_indices,
    seq_lens,
    accept_lengths,
    next_ids,
    positions,
    hidden_states,
    last,
    kept_ids,
    kept_hidden,
    row_stride,
    column_stride,
    EARLIER: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Grid: (rows and kept positions of all requests, pieces of a hidden state)."""
    b = (tl.program_id(0) // (WIDTH + EARLIER)).to(tl.int64)
    place = tl.program_id(0) % (WIDTH + EARLIER)
    is_row = place < WIDTH
    length = tl.load(seq_lens + b)
    accepted = tl.load(accept_lengths + b)
    started = tl.maximum(length, EARLIER)
    lacking = started - length
    # of the recent positions and the new ones, one after another
    source = tl.where(is_row, tl.minimum(place + lacking, WIDTH - 1), accepted + place - WIDTH)
    is_new = source >= EARLIER
    new = b * (WIDTH - EARLIER) + source - EARLIER
    recent = tl.load(req_pool_indices + b) * EARLIER + source

    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < SIZE
    fresh = tl.load(features + new * row_stride + column * column_stride, mask=inside & is_new, other=0)
    stored = tl.load(recent_hidden + recent * SIZE + column, mask=inside & (source < EARLIER), other=0)
    hidden = tl.where(is_new, fresh, stored)
    row, kept = b * WIDTH + place, b * EARLIER + place - WIDTH
    tl.store(hidden_states + row * SIZE + column, hidden, mask=inside & is_row)
    tl.store(kept_hidden + kept * SIZE + column, hidden, mask=inside & (place >= WIDTH))

    first = tl.program_id(1) == 0
    token = tl.load(input_ids + new, mask=is_new, other=0) + tl.load(
        recent_ids + recent, mask=source < EARLIER, other=0
    )
    tl.store(next_ids + row, token, mask=first & is_row)
    tl.store(kept_ids + kept, token, mask=first & (place >= WIDTH))
    tl.store(positions + row, started - EARLIER + place, mask=first & is_row)
    tl.store(last + b, b * WIDTH + EARLIER - 1 + accepted - lacking, mask=first & (place == 0))

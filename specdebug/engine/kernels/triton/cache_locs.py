"""Triton twins of :mod:`specdebug.engine.kernels.cache_locs`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specdebug.engine.kernels.cache_locs import DraftCacheLocs

_TILE = 256


def verify_cache_locs(table, req_pool_indices, seq_lens, num_tokens):
    slots = torch.empty(seq_lens.numel() * num_tokens, dtype=torch.int64, device=table.device)
    if slots.numel():
        grid = (triton.cdiv(slots.numel(), _TILE),)
        tensors = (table, req_pool_indices, seq_lens, slots)
        _read_cells[grid](*tensors, table.stride(0), slots.numel(), TOKENS=num_tokens, TILE=_TILE)
    return slots


def assign_draft_cache_locs(table, req_pool_indices, seq_lens, *, topk, num_steps, page_size):
    batch = seq_lens.numel()
    slots = torch.empty((batch * topk, num_steps), dtype=torch.int64, device=table.device)
    paged = topk > 1 and page_size > 1
    dup_src = dup_tgt = None
    if paged:
        duplicates = batch * (topk - 1) * page_size
        dup_src, dup_tgt = torch.empty((2, duplicates), dtype=torch.int64, device=table.device).unbind(0)
    if batch:
        tensors = (table, req_pool_indices, seq_lens, slots, dup_src, dup_tgt)
        tile = triton.next_power_of_2(max(num_steps, page_size if paged else 1))
        _read_branches[(batch * topk,)](*tensors, table.stride(0), topk, num_steps, page_size, tile)
    return DraftCacheLocs(slots, dup_src, dup_tgt)


def write_slots(table, req_pool_indices, firsts, offsets, out_cache_loc):
    total, batch = out_cache_loc.numel(), firsts.numel()
    if total:
        # the host does not know who has how many: pieces that a request has no slots for do nothing
        tensors = (table, req_pool_indices, firsts, offsets, out_cache_loc)
        _write_pieces[(batch, triton.cdiv(total, _TILE))](*tensors, table.stride(0), TILE=_TILE)


@triton.jit(do_not_specialize=["count"])
def _read_cells(table, rows, lengths, out, table_stride, count, TOKENS: tl.constexpr, TILE: tl.constexpr):
    entry = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = entry < count
    b = entry // TOKENS
    row = tl.load(rows + b, mask=inside, other=0).to(tl.int64)
    length = tl.load(lengths + b, mask=inside, other=0).to(tl.int64)
    slots = tl.load(table + row * table_stride + length + entry % TOKENS, mask=inside, other=0)
    tl.store(out + entry, slots.to(tl.int64), mask=inside)


@triton.jit
def _read_branches(
    table,
    rows,
    lengths,
    out,
    dup_src,
    dup_tgt,
    table_stride,
    TOPK: tl.constexpr,
    STEPS: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
):
    b = tl.program_id(0) // TOPK
    branch = tl.program_id(0) % TOPK
    column = tl.arange(0, TILE)
    length = tl.load(lengths + b).to(tl.int64)
    cells = table + tl.load(rows + b).to(tl.int64) * table_stride
    if TOPK > 1 and PAGE > 1:
        tail = length % PAGE
        head = length - tail
        mine = head + branch * ((tail + STEPS + PAGE - 1) // PAGE * PAGE)
        first = mine + tail
        entry = (b * (TOPK - 1) + branch - 1).to(tl.int64) * PAGE + column
        exists = (branch > 0) & (column < PAGE)
        shared = exists & (column < tail)
        src = tl.load(cells + head + column, mask=shared, other=0)
        tgt = tl.load(cells + mine + column, mask=shared, other=0)
        tl.store(dup_src + entry, src.to(tl.int64), mask=exists)
        tl.store(dup_tgt + entry, tgt.to(tl.int64), mask=exists)
    else:
        first = length + branch * STEPS
    inside = column < STEPS
    slots = tl.load(cells + first + column, mask=inside, other=0)
    tl.store(out + tl.program_id(0).to(tl.int64) * STEPS + column, slots.to(tl.int64), mask=inside)


@triton.jit
def _write_pieces(table, rows, firsts, offsets, slots, table_stride, TILE: tl.constexpr):
    b = tl.program_id(0)
    start = tl.load(offsets + b)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < tl.load(offsets + b + 1) - start
    cells = table + tl.load(rows + b).to(tl.int64) * table_stride + tl.load(firsts + b).to(tl.int64)
    slot = tl.load(slots + start + place, mask=inside, other=0)
    tl.store(cells + place, slot.to(tl.int32), mask=inside)

"""Triton twins of :mod:`specdebug.engine.kernels.cache_locs`: every cell of a batch in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.cache_locs import DraftCacheLocs

_TILE = 256


def verify_cache_locs(table: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, num_tokens: int) -> Tensor:
    slots = torch.empty(seq_lens.numel() * num_tokens, dtype=torch.int64, device=table.device)
    if slots.numel():
        _read_cells[(triton.cdiv(slots.numel(), _TILE),)](
            table, req_pool_indices, seq_lens, slots, table.stride(0), slots.numel(), TOKENS=num_tokens, TILE=_TILE
        )
    return slots


def assign_draft_cache_locs(
    table: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, *, topk: int, num_steps: int, page_size: int
) -> DraftCacheLocs:
    batch = seq_lens.numel()
    slots = torch.empty((batch * topk, num_steps), dtype=torch.int64, device=table.device)
    paged = topk > 1 and page_size > 1
    dup_src = dup_tgt = None
    if paged:
        duplicates = batch * (topk - 1) * page_size
        dup_src, dup_tgt = torch.empty((2, duplicates), dtype=torch.int64, device=table.device).unbind(0)
    if batch:
        _read_branches[(batch * topk,)](
            table,
            req_pool_indices,
            seq_lens,
            slots,
            dup_src,
            dup_tgt,
            table.stride(0),
            TOPK=topk,
            STEPS=num_steps,
            PAGE=page_size,
            PAGED=paged,
            TILE=triton.next_power_of_2(max(num_steps, page_size if paged else 1)),
        )
    return DraftCacheLocs(slots, dup_src, dup_tgt)


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
    PAGED: tl.constexpr,
    TILE: tl.constexpr,
):
    b = tl.program_id(0) // TOPK
    branch = tl.program_id(0) % TOPK
    column = tl.arange(0, TILE)
    length = tl.load(lengths + b).to(tl.int64)
    cells = table + tl.load(rows + b).to(tl.int64) * table_stride
    if PAGED:
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

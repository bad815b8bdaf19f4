"""Triton twins of :mod:`specdebug.engine.kernels.kv_indices`; lengths stay on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024
_MAX_PROGRAMS = 64
_MIN_BATCH_TILE = 64  # one compiled kernel for all smaller batches


def create_kv_indices(table, req_pool_indices, kv_lens, kv_indptr, kv_indices):
    grid = (req_pool_indices.numel(), _programs_per_sequence(table))
    if grid[0]:
        _copy_rows[grid](table, req_pool_indices, kv_lens, kv_indptr, kv_indices, table.stride(0), TILE=_TILE)


def generate_draft_decode_kv_indices(table, req_pool_indices, seq_lens, out_cache_loc, topk, kv_indices, num_forwards):
    """Leave to the next forward what it writes: where a row is too long, memory ends up as if rows were written in
    order."""
    batch = req_pool_indices.numel()
    grid = (batch * topk, num_forwards, _programs_per_sequence(table))
    if batch and num_forwards:
        tensors = (table, req_pool_indices, seq_lens, out_cache_loc, kv_indices)
        strides = (table.stride(0), *out_cache_loc.stride(), kv_indices.stride(0))
        _write_branches[grid](*tensors, *strides, topk, max(triton.next_power_of_2(batch), _MIN_BATCH_TILE), _TILE)


def gather_page_table(table, req_pool_indices, num_pages, page_size):
    batch = req_pool_indices.numel()
    pages = torch.empty((batch, num_pages), dtype=table.dtype, device=table.device)
    if pages.numel():
        grid = (batch, triton.cdiv(num_pages, _TILE))
        _gather_pages[grid](table, req_pool_indices, pages, table.stride(0), num_pages, PAGE=page_size, TILE=_TILE)
    return pages


def _programs_per_sequence(table: Tensor) -> int:
    """Programs for the longest row there can be; only the device knows the lengths, and each program strides on."""
    return max(1, min(-(-table.shape[1] // _TILE), _MAX_PROGRAMS))


@triton.jit
def _copy_rows(table, rows, lengths, starts, out, table_stride, TILE: tl.constexpr):
    b = tl.program_id(0)
    cells = table + tl.load(rows + b).to(tl.int64) * table_stride
    target = out + tl.load(starts + b).to(tl.int64)
    length = tl.load(lengths + b).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * TILE
    stride = tl.num_programs(1) * TILE
    while first < length:
        column = first + tl.arange(0, TILE)
        inside = column < length
        values = tl.load(cells + column, mask=inside, other=0)
        tl.store(target + column, values.to(out.dtype.element_ty), mask=inside)
        first += stride


@triton.jit
def _write_branches(
    table,
    rows,
    lengths,
    slots,
    out,
    table_stride,
    slots_stride,
    slots_step,
    out_stride,
    TOPK: tl.constexpr,
    BATCH_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    b = tl.program_id(0) // TOPK
    branch = tl.program_id(0) % TOPK
    forward = tl.program_id(1)
    other = tl.arange(0, BATCH_TILE)
    before = tl.sum(tl.load(lengths + other, mask=other < b, other=0).to(tl.int64), axis=0)
    prefix = tl.load(lengths + b).to(tl.int64)
    length = prefix + forward + 1
    start = TOPK * (before + b * (forward + 1)) + branch * length
    is_last = forward == tl.num_programs(1) - 1
    stop = tl.where(is_last, length, tl.minimum(length, out_stride - start))
    cells = table + tl.load(rows + b).to(tl.int64) * table_stride
    own = slots + tl.program_id(0).to(tl.int64) * slots_stride
    target = out + forward.to(tl.int64) * out_stride + start
    first = tl.program_id(2).to(tl.int64) * TILE
    stride = tl.num_programs(2) * TILE
    while first < stop:
        column = first + tl.arange(0, TILE)
        inside = column < stop
        shared = column < prefix
        cell = tl.load(cells + column, mask=inside & shared, other=0)
        slot = tl.load(own + (column - prefix) * slots_step, mask=inside & (column >= prefix), other=0)
        values = tl.where(shared, cell, slot.to(cell.dtype))
        tl.store(target + column, values.to(out.dtype.element_ty), mask=inside)
        first += stride


@triton.jit
def page_of(slots, PAGE: tl.constexpr):
    """The page of each slot, rounded down as torch does; a device's own integer division rounds to zero."""
    pages = slots // PAGE
    return tl.where(slots - pages * PAGE < 0, pages - 1, pages)


@triton.jit(do_not_specialize=["num_pages"])
def _gather_pages(table, rows, out, table_stride, num_pages, PAGE: tl.constexpr, TILE: tl.constexpr):
    b = tl.program_id(0)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < num_pages
    cells = table + tl.load(rows + b).to(tl.int64) * table_stride
    slots = tl.load(cells + column.to(tl.int64) * PAGE, mask=inside, other=0)
    tl.store(out + b.to(tl.int64) * num_pages + column, page_of(slots, PAGE), mask=inside)


def set_expand_page_table(cache_loc, page_size, page_table):
    """Leave to a later row what it writes: where a row is too long, memory ends up as if rows were written in order."""
    rows, columns = cache_loc.shape
    if cache_loc.numel():
        stride = page_table.stride(0)
        sizes = (page_size, (columns - 1) // stride, triton.next_power_of_2(columns))
        _write_pages[(rows,)](cache_loc, page_table, *cache_loc.stride(), stride, columns, *sizes)


@triton.jit
def _write_pages(
    cache_loc,
    table,
    row_stride,
    column_stride,
    table_stride,
    columns,
    PAGE: tl.constexpr,
    REACH: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.arange(0, TILE)
    slots = cache_loc + row.to(tl.int64) * row_stride
    pages, begins = _page_starts(slots, column, column < columns, column_stride, PAGE)
    rank = tl.cumsum(begins.to(tl.int32), axis=0) - 1
    keep = begins
    for later in tl.static_range(1, REACH + 1):
        exists = (column < columns) & (row + later < tl.num_programs(0))
        _, theirs = _page_starts(slots + later * row_stride, column, exists, column_stride, PAGE)
        into = rank - later * table_stride
        keep = keep & ((into < 0) | (into >= tl.sum(theirs.to(tl.int32), axis=0)))
    target = table + row.to(tl.int64) * table_stride + rank
    tl.store(target, pages.to(table.dtype.element_ty), mask=keep)


@triton.jit
def _page_starts(slots, column, inside, column_stride, PAGE: tl.constexpr):
    """Each slot's page, and true where a run of equal pages begins."""
    pages = page_of(tl.load(slots + column * column_stride, mask=inside, other=0), PAGE)
    follows = inside & (column > 0)
    before = page_of(tl.load(slots + (column - 1) * column_stride, mask=follows, other=0), PAGE)
    return pages, inside & ((column == 0) | (pages != before))

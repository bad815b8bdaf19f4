"""Triton twin of :mod:`specdebug.engine.kernels.expand_page_table`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.triton.kv_indices import page_of


def set_expand_page_table(cache_loc: Tensor, page_size: int, page_table: Tensor) -> None:
    """Leave to a later row what it writes: where a row is too long, memory ends up as if rows were written in order."""
    rows, columns = cache_loc.shape
    if cache_loc.numel() == 0:
        return
    stride = page_table.stride(0)
    _write_pages[(rows,)](
        cache_loc,
        page_table,
        *cache_loc.stride(),
        stride,
        columns,
        PAGE=page_size,
        REACH=(columns - 1) // stride,
        TILE=triton.next_power_of_2(columns),
    )


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

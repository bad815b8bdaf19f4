"""The product of a few rows with a large weight matrix, limited by reading the weights once.

Every program streams some output columns' weights, from end to end, or where that would leave multiprocessors
without work a part of them; then the last program of those columns to finish adds the parts up, in their own order
whichever it is, so the result does not depend on the order in which programs run. The weights are the left operand, so
that their many columns fill the tall side of the tensor core's tile and the few rows its short side.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.triton.tickets import tickets

MAX_ROWS = 16
DTYPES = (torch.bfloat16, torch.float16)


class Tile(NamedTuple):
    """Output columns of a program, how much of their depth it loads at once, how many loads are under way; and how
    many programs share a column's depth."""

    columns: int
    depth: int
    warps: int
    stages: int
    splits: int = 1


TILES = {
    "16x256": Tile(16, 256, 2, 5),
    "32x256": Tile(32, 256, 4, 6),
    "32x128": Tile(32, 128, 4, 8),
    "64x128": Tile(64, 128, 4, 5),
    "64x128/2": Tile(64, 128, 4, 5, 2),
    "64x128/4": Tile(64, 128, 4, 5, 4),
    "64x256/4": Tile(64, 256, 8, 3, 4),
    "128x128/8": Tile(128, 128, 8, 3, 8),
}


@triton.jit(do_not_specialize=["rows"])
def _skinny_gemm(
    x_ptr,
    weight_ptr,
    base_ptr,
    out_ptr,
    parts_ptr,
    tickets_ptr,
    rows,
    width,
    depth,
    share,
    x_stride,
    weight_stride,
    base_stride,
    out_stride,
    HAS_BASE: tl.constexpr,
    WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Grid: (blocks of columns, SPLITS). Of the depth, ``share`` for each split, a multiple of DEPTH."""
    block = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.arange(0, ROWS)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    k = split * share + tl.arange(0, DEPTH)
    live_row = (row < rows)[:, None]
    live_column = (column < width)[:, None]
    x_cells = x_ptr + row.to(tl.int64)[:, None] * x_stride + k[None, :]
    weight_cells = weight_ptr + column.to(tl.int64)[:, None] * weight_stride + k[None, :]
    total = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for start in range(split * share, tl.minimum((split + 1) * share, depth), DEPTH):
        if WHOLE:
            x = tl.load(x_cells, mask=live_row, other=0.0)
            weight = tl.load(weight_cells, mask=live_column, other=0.0, eviction_policy="evict_first")
        else:
            inside = (start + tl.arange(0, DEPTH) < depth)[None, :]
            x = tl.load(x_cells, mask=live_row & inside, other=0.0)
            weight = tl.load(weight_cells, mask=live_column & inside, other=0.0, eviction_policy="evict_first")
        total = tl.dot(weight, tl.trans(x), total)
        x_cells += DEPTH
        weight_cells += DEPTH
    live = live_column & (row < rows)[None, :]
    if SPLITS > 1:
        tile = tl.arange(0, COLUMNS)[:, None] * ROWS + row[None, :]
        parts = parts_ptr + block * (SPLITS * COLUMNS * ROWS) + tile
        tl.store(parts + split * (COLUMNS * ROWS), total, mask=live)
        tl.debug_barrier()  # every thread's stores come before the one thread's release
        arrived = tl.atomic_add(tickets_ptr + block, 1, sem="acq_rel")
    if SPLITS > 1 and arrived != SPLITS - 1:
        return
    if SPLITS > 1:
        total = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
        for part in tl.static_range(SPLITS):
            # other programs' sums: past this processor's own cache
            total += tl.load(parts + part * (COLUMNS * ROWS), mask=live, other=0.0, cache_modifier=".cg")
        tl.store(tickets_ptr + block, 0)
    if HAS_BASE:
        base = tl.load(base_ptr + row.to(tl.int64)[None, :] * base_stride + column[:, None], mask=live, other=0.0)
        total += base.to(tl.float32)
    cells = out_ptr + row.to(tl.int64)[None, :] * out_stride + column[:, None]
    tl.store(cells, total.to(out_ptr.dtype.element_ty), mask=live)


def tile_for(width: int, depth: int) -> Tile:
    """The tile for ``width`` output columns: narrow where a wide one would leave multiprocessors idle, or, where
    the sums are long enough to pay for adding parts up, several programs to a column."""
    if depth >= 8192 and width <= 8192:
        return TILES["64x128/4"]
    if width <= 2048:
        return TILES["32x256"]
    return TILES["64x128"]


def skinny_gemm(
    x: Tensor, weight: Tensor, base: Tensor | None = None, out: Tensor | None = None, tile: Tile | None = None
) -> Tensor:
    """x [n, in] @ weight [in, out], plus ``base`` [n, out] if given; n <= 16, bf16 or fp16, summed in float32.

    The weight's inputs must be adjacent (storage [out, in]). ``out`` may be ``base`` itself. A product that is cut
    into parts counts by :mod:`~specdebug.engine.kernels.triton.tickets`.

    Raises:
        ValueError: too many rows, another dtype, or a layout that the kernel does not read.
    """
    rows, depth = x.shape
    width = weight.shape[1]
    if rows > MAX_ROWS or x.dtype not in DTYPES or weight.dtype != x.dtype:
        raise ValueError(f"skinny_gemm: at most {MAX_ROWS} rows of bf16 or fp16, not {rows} of {x.dtype}")
    if weight.shape[0] != depth or weight.stride(0) != 1 or x.stride(1) != 1:
        raise ValueError(f"skinny_gemm: x [n, {depth}] and the weight's [out, in] storage must be adjacent along in")
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device) if out is None else out
    added = out if base is None else base
    if added.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("skinny_gemm: the elements of a row of base and out must be adjacent")
    if rows:
        columns, step, warps, stages, splits = tile or tile_for(width, depth)
        blocks = triton.cdiv(width, columns)
        parts = counters = None
        if splits > 1:
            parts = torch.empty(blocks * splits * columns * MAX_ROWS, dtype=torch.float32, device=x.device)
            counters = tickets(x.device, blocks)
        _skinny_gemm[(blocks, splits)](
            x,
            weight,
            added,
            out,
            parts,
            counters,
            rows,
            width,
            depth,
            triton.cdiv(depth, step * splits) * step,
            x.stride(0),
            weight.stride(1),
            added.stride(0),
            out.stride(0),
            HAS_BASE=base is not None,
            WHOLE=depth % step == 0,
            ROWS=MAX_ROWS,
            COLUMNS=columns,
            DEPTH=step,
            SPLITS=splits,
            num_warps=warps,
            num_stages=stages,
        )
    return out

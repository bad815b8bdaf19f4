"""The product of a few rows with a large weight matrix, limited by reading the weights once.

Every program streams some output columns' weights from end to end, so the order of programs does not change a result.
The weights are the left operand: their many columns fill the tall side of the tensor core's tile, the few rows its
short side. Cutting long sums into parts, added up in the last program to finish, was slower: 32.7 us against 30.2 for
the down projection of an 8B layer on an H200.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROWS = 16
DTYPES = (torch.bfloat16, torch.float16)


class GemmTile(NamedTuple):
    """A program's output columns, the depth that it loads at once, its warps, and the loads under way."""

    columns: int
    depth: int
    warps: int
    stages: int


TILES = {
    "16x256": GemmTile(16, 256, 2, 5),
    "32x256": GemmTile(32, 256, 4, 6),
    "32x128": GemmTile(32, 128, 4, 8),
    "64x128": GemmTile(64, 128, 4, 5),
}


@triton.jit(do_not_specialize=["rows"])
def _skinny_gemm(
    x_ptr,
    weight_ptr,
    base_ptr,
    out_ptr,
    rows,
    width,
    depth,
    x_stride,
    weight_stride,
    base_stride,
    out_stride,
    HAS_BASE: tl.constexpr,
    WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Grid: (blocks of columns,)."""
    block = tl.program_id(0)
    row = tl.arange(0, ROWS)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    live_row = (row < rows)[:, None]
    live_column = (column < width)[:, None]
    x_cells = x_ptr + row.to(tl.int64)[:, None] * x_stride + k[None, :]
    weight_cells = weight_ptr + column.to(tl.int64)[:, None] * weight_stride + k[None, :]
    total = tl.zeros((COLUMNS, ROWS), dtype=tl.float32)
    for start in range(0, depth, DEPTH):
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
    if HAS_BASE:
        base = tl.load(base_ptr + row.to(tl.int64)[None, :] * base_stride + column[:, None], mask=live, other=0.0)
        total += base.to(tl.float32)
    cells = out_ptr + row.to(tl.int64)[None, :] * out_stride + column[:, None]
    tl.store(cells, total.to(out_ptr.dtype.element_ty), mask=live)


def tile_for(width: int) -> GemmTile:
    """The tile for ``width`` output columns: narrow where a wide one would leave multiprocessors idle."""
    return TILES["32x256"] if width <= 4096 else TILES["64x128"]


def skinny_gemm(
    x: Tensor, weight: Tensor, base: Tensor | None = None, out: Tensor | None = None, tile: GemmTile | None = None
) -> Tensor:
    """Compute x [n, in] @ weight [in, out], plus ``base`` [n, out] if given; n <= 16, bf16 or fp16, summed in float32.

    The weight's inputs must be adjacent (storage [out, in]). ``out`` may be ``base`` itself. Raises ValueError for too
    many rows, another dtype, or a layout that the kernel does not read.
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
        columns, step, warps, stages = tile or tile_for(width)
        _skinny_gemm[(triton.cdiv(width, columns),)](
            x,
            weight,
            added,
            out,
            rows,
            width,
            depth,
            x.stride(0),
            weight.stride(1),
            added.stride(0),
            out.stride(0),
            HAS_BASE=base is not None,
            WHOLE=depth % step == 0,
            ROWS=MAX_ROWS,
            COLUMNS=columns,
            DEPTH=step,
            num_warps=warps,
            num_stages=stages,
        )
    return out

"""A product for each head, read and written where heads lie side by side in a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_MAX_ROWS = 64
_COLUMNS = 32
_DEPTH = 128


@triton.jit
def multiply_head(
    x,
    weight,
    out,
    head,
    column,
    row,
    rows,
    width,
    depth,
    x_stride,
    x_head_stride,
    weight_head_stride,
    in_stride,
    column_stride,
    out_stride,
    out_head_stride,
    DEPTH: tl.constexpr,
):
    """Write the product of some rows with some columns of one head: int32 ``row`` and ``column``, of which those below
    ``rows`` and ``width`` exist."""
    head = head.to(tl.int64)
    live_row = (row < rows)[:, None]
    live_column = (column < width)[None, :]
    x_rows = x + row.to(tl.int64)[:, None] * x_stride + head * x_head_stride
    columns = weight + head * weight_head_stride + column[None, :] * column_stride
    total = tl.zeros((row.shape[0], column.shape[0]), dtype=tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        inside = k < depth
        tokens = tl.load(x_rows + k[None, :], mask=live_row & inside[None, :], other=0.0)
        weights = tl.load(columns + k[:, None] * in_stride, mask=inside[:, None] & live_column, other=0.0)
        total = tl.dot(tokens, weights, total, input_precision="ieee")
    cells = out + row.to(tl.int64)[:, None] * out_stride + head * out_head_stride + column[None, :]
    tl.store(cells, total.to(out.dtype.element_ty), mask=live_row & live_column)


@triton.jit(do_not_specialize=["rows"])
def _head_linear(
    x,
    weight,
    out,
    rows,
    width,
    depth,
    x_stride,
    x_head_stride,
    weight_head_stride,
    in_stride,
    column_stride,
    out_stride,
    out_head_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Grid: (Hq, blocks of columns, blocks of rows)."""
    multiply_head(
        x,
        weight,
        out,
        tl.program_id(0),
        tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS),
        tl.program_id(2) * ROWS + tl.arange(0, ROWS),
        rows,
        width,
        depth,
        x_stride,
        x_head_stride,
        weight_head_stride,
        in_stride,
        column_stride,
        out_stride,
        out_head_stride,
        DEPTH,
    )


def head_linear(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Write x [n, Hq, in] @ weight [Hq, in, out], head by head, to ``out`` [n, Hq, out]; return it.

    All of one dtype (bf16, fp16, fp32), summed in float32. Raises ValueError if the elements of a head of x or ``out``
    are not adjacent.
    """
    if x.stride(2) != 1 or out.stride(2) != 1:
        raise ValueError("head_linear: the elements of a head must be adjacent")
    rows, heads, depth = x.shape
    width = weight.shape[2]
    if rows == 0:
        return out
    block = rows_at_once(rows)
    _head_linear[(heads, triton.cdiv(width, _COLUMNS), triton.cdiv(rows, block))](
        x,
        weight,
        out,
        rows,
        width,
        depth,
        *x.stride()[:2],
        *weight.stride(),
        *out.stride()[:2],
        ROWS=block,
        COLUMNS=_COLUMNS,
        DEPTH=_DEPTH,
        num_warps=4,
        num_stages=4,
    )
    return out


def rows_at_once(rows: int) -> int:
    """Rows of one program, where there are that many in all."""
    return int(min(_MAX_ROWS, max(16, triton.next_power_of_2(rows))))

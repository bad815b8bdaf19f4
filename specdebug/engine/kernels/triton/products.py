"""Products of a few rows: with a large weight matrix, head by head, and those that prepare tokens for latent attention.

The order of programs does not change a result: each streams its columns' weights from end to end. Weights are the left
operand: their many columns fill the tall side of the tensor core's tile, the few rows its short side.
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
        sizes = (rows, width, depth, x.stride(0), weight.stride(1), added.stride(0), out.stride(0))
        constants = (base is not None, depth % step == 0, MAX_ROWS, columns, step)
        grid = (triton.cdiv(width, columns),)
        _skinny_gemm[grid](x, weight, added, out, *sizes, *constants, num_warps=warps, num_stages=stages)
    return out


_HEAD_ROWS = 64
_HEADS_AT_ONCE = 8


@triton.jit(do_not_specialize=["rows"])
def _multiply_heads(
    x,
    weight,
    out,
    rows,
    heads,
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
    """The first programs of a grid: for each block of rows, each head, and each block of its columns one."""
    pid = tl.program_id(0)
    blocks = tl.cdiv(width, COLUMNS)
    head = (pid // blocks % heads).to(tl.int64)
    column = pid % blocks * COLUMNS + tl.arange(0, COLUMNS)
    row = pid // (blocks * heads) * ROWS + tl.arange(0, ROWS)
    live_row = (row < rows)[:, None]
    live_column = (column < width)[None, :]
    x_rows = x + row.to(tl.int64)[:, None] * x_stride + head * x_head_stride
    columns = weight + head * weight_head_stride + column[None, :] * column_stride
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        inside = k < depth
        tokens = tl.load(x_rows + k[None, :], mask=live_row & inside[None, :], other=0.0)
        weights = tl.load(columns + k[:, None] * in_stride, mask=inside[:, None] & live_column, other=0.0)
        total = tl.dot(tokens, weights, total, input_precision="ieee")
    cells = out + row.to(tl.int64)[:, None] * out_stride + head * out_head_stride + column[None, :]
    tl.store(cells, total.to(out.dtype.element_ty), mask=live_row & live_column)


def head_linear(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Write x [n, Hq, in] @ weight [Hq, in, out], head by head, to ``out`` [n, Hq, out]; return it.

    All of one dtype (bf16, fp16, fp32), summed in float32. Raises ValueError if the elements of a head of x or ``out``
    are not adjacent.
    """
    if x.stride(2) != 1 or out.stride(2) != 1:
        raise ValueError("head_linear: the elements of a head must be adjacent")
    rows, heads, depth = x.shape
    width, columns = weight.shape[2], 32
    if rows:
        block = _rows_at_once(rows)
        strides = (*x.stride()[:2], *weight.stride(), *out.stride()[:2])
        grid = (triton.cdiv(rows, block) * heads * triton.cdiv(width, columns),)
        tile = {"ROWS": block, "COLUMNS": columns, "DEPTH": 128, "num_warps": 4, "num_stages": 4}
        _multiply_heads[grid](x, weight, out, rows, heads, width, depth, *strides, **tile)
    return out


def _rows_at_once(rows: int) -> int:
    """Rows of one program, where there are that many in all."""
    return int(min(_HEAD_ROWS, max(16, triton.next_power_of_2(rows))))


@triton.jit(do_not_specialize=["count", "products"], do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _absorb_and_store(
    queries_ptr,
    up_ptr,
    row_ptr,
    positions_ptr,
    phases_ptr,
    gain_ptr,
    absorbed_ptr,
    rows_ptr,
    slots_ptr,
    eps,
    count,
    heads,
    latent,
    nope,
    products,
    query_stride,
    query_head_stride,
    up_head_stride,
    up_stride,
    row_stride,
    absorbed_stride,
    absorbed_head_stride,
    slot_stride,
    slots_step,
    PART: tl.constexpr,
    BLOCK_PART: tl.constexpr,
    BLOCK_LATENT: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Grid: ``products`` programs, each for some columns of a head and some tokens, then for each token one that stores
    its row and one for each block of heads."""
    pid = tl.program_id(0)
    if pid < products:
        _multiply_heads(
            queries_ptr,
            up_ptr,
            absorbed_ptr,
            count,
            heads,
            latent,
            nope,
            query_stride,
            query_head_stride,
            up_head_stride,
            up_stride,
            1,
            absorbed_stride,
            absorbed_head_stride,
            ROWS,
            COLUMNS,
            DEPTH,
        )
        return
    each = 1 + tl.cdiv(heads, BLOCK_HEADS)
    token = ((pid - products) // each).to(tl.int64)
    member = (pid - products) % each
    position = tl.load(positions_ptr + token).to(tl.int64)
    lane = tl.arange(0, BLOCK_PART)
    live_lane = lane < PART
    phase = tl.load(phases_ptr + position * PART + lane, mask=live_lane, other=0.0)
    cos, sin = tl.split(tl.reshape(phase, (BLOCK_PART // 2, 2)))
    if member == 0:
        slot = tl.load(slots_ptr + token * slots_step).to(tl.int64)
        target = rows_ptr + slot * slot_stride
        source = row_ptr + token * row_stride
        column = tl.arange(0, BLOCK_LATENT)
        live = column < latent
        stored = tl.load(source + column, mask=live, other=0.0)
        gain = tl.load(gain_ptr + column, mask=live, other=0.0)
        x = stored.to(tl.float32)
        normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / latent + eps)
        # rounded before the gain, as in ``layers.rms_norm``
        normed = normed.to(stored.dtype).to(tl.float32) * gain.to(tl.float32)
        tl.store(target + column, normed.to(stored.dtype).to(rows_ptr.dtype.element_ty), mask=live)
        part = tl.load(source + latent + lane, mask=live_lane, other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(part, (BLOCK_PART // 2, 2)))
        turned = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (BLOCK_PART,))
        turned = turned.to(stored.dtype).to(rows_ptr.dtype.element_ty)
        tl.store(target + latent + lane, turned, mask=live_lane)
    else:
        head = (member - 1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        live_parts = (head < heads)[:, None] & live_lane[None, :]
        cells = queries_ptr + token * query_stride + head[:, None] * query_head_stride + nope + lane[None, :]
        parts = tl.load(cells, mask=live_parts, other=0.0).to(tl.float32)
        even, odd = tl.split(tl.reshape(parts, (BLOCK_HEADS, BLOCK_PART // 2, 2)))
        # names of their own: to the compiler a variable has one shape in both branches
        c, s = cos[None, :], sin[None, :]
        turned_parts = tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), (BLOCK_HEADS, BLOCK_PART))
        places = absorbed_ptr + token * absorbed_stride + head[:, None] * absorbed_head_stride + latent + lane[None, :]
        tl.store(places, turned_parts.to(absorbed_ptr.dtype.element_ty), mask=live_parts)


def absorb_and_store(
    queries: Tensor,
    up: Tensor,
    row: Tensor,
    positions: Tensor,
    phases: Tensor,
    gain: Tensor,
    eps: float,
    absorbed: Tensor,
    rows: Tensor,
    slots: Tensor,
) -> None:
    """Bring queries [n, Hq, Dn + R] to the latent's space, and store row [n, C + R] in rows [N, 1, C + R] at int64
    ``slots`` [n], unchecked.

    ``absorbed`` [n, Hq, C + R] receives the first Dn columns times ``up`` [Hq, Dn, C], and the others turned. Of a row
    the first C columns are normed by ``gain`` [C], the rest turned. positions [n] int64, unchecked. phases [P, R]
    float32: cosine and sine of pair j at 2j and 2j+1 of its position's row; pairs are adjacent. Computed in float32.
    Raises ValueError if the elements of a row are not adjacent.
    """
    adjacent = all(tensor.stride(-1) == 1 for tensor in (queries, up, row, absorbed, rows))
    if not adjacent or not all(tensor.is_contiguous() for tensor in (positions, phases, gain)):
        raise ValueError("absorb_and_store: elements of a row must be adjacent, positions, phases and gain contiguous")
    count, heads = queries.shape[:2]
    if count == 0:
        return
    nope, latent = up.shape[1:]
    part, block, columns = queries.shape[2] - nope, _rows_at_once(count), 64
    products = heads * triton.cdiv(latent, columns) * triton.cdiv(count, block)
    grid = (products + count * (1 + triton.cdiv(heads, _HEADS_AT_ONCE)),)
    tensors = (queries, up, row, positions, phases, gain, absorbed, rows, slots)
    sizes = (eps, count, heads, latent, nope, products)
    strides = (*queries.stride()[:2], *up.stride()[:2], row.stride(0), *absorbed.stride()[:2], rows.stride(0))
    tiles = (part, triton.next_power_of_2(part), triton.next_power_of_2(latent), _HEADS_AT_ONCE, block, columns, 64)
    _absorb_and_store[grid](*tensors, *sizes, *strides, slots.stride(0), *tiles, num_warps=4)

"""Rotary position embedding of a fused qkv row, in place and in one launch."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.triton.prefetch import AFTER_ATTENTION_BYTES, prefetch, prefetch_of

HEADS_PER_PROGRAM = 8
WARPS = 4


@triton.jit(do_not_specialize=["rows"])
def _rotate(
    qkv_ptr,
    positions_ptr,
    phases_ptr,
    rows,
    heads,
    head_dim,
    qkv_stride,
    phases_stride,
    next_ptr,
    next_stride,
    next_parts,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    LANES: tl.constexpr,
):
    if next_ptr is not None and tl.program_id(0) >= rows:
        program = (tl.program_id(0) - rows) * tl.num_programs(1) + tl.program_id(1)
        prefetch(next_ptr, next_stride, next_parts, program, LANES)
        return
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    lane = tl.arange(0, BLOCK_DIM)
    position = tl.load(positions_ptr + row).to(tl.int64)
    phase = tl.load(phases_ptr + position * phases_stride + lane, mask=lane < head_dim, other=0.0)
    cos, sin = tl.split(tl.reshape(phase, (BLOCK_DIM // 2, 2)))
    cos = cos[None, :]
    sin = sin[None, :]
    cells = qkv_ptr + row * qkv_stride + head[:, None] * head_dim + lane[None, :]
    live = (head < heads)[:, None] & (lane < head_dim)[None, :]
    stored = tl.load(cells, mask=live, other=0.0)
    a, b = tl.split(tl.reshape(stored.to(tl.float32), (BLOCK_HEADS, BLOCK_DIM // 2, 2)))
    turned = tl.join(a * cos - b * sin, a * sin + b * cos)
    tl.store(cells, tl.reshape(turned, (BLOCK_HEADS, BLOCK_DIM)).to(stored.dtype), mask=live)


def rotate(
    qkv: Tensor, positions: Tensor, phases: Tensor, heads: int, head_dim: int, then: Tensor | None = None
) -> None:
    """Turn the first ``heads`` heads of every row of qkv [n, >= heads*D], pairs adjacent, in place.

    positions [n] int64. phases [P, W] float32, W >= D: cosine and sine of pair j at 2j and 2j+1 of its position's
    row. A position outside the table reads whatever lies there: checking it is the caller's. ``then``: the weight
    that reads what attention makes of this, prefetched meanwhile.

    Raises:
        ValueError: the elements of a row are not adjacent.
    """
    if qkv.stride(1) != 1 or phases.stride(1) != 1 or not positions.is_contiguous():
        raise ValueError("rotate: the elements of a row of qkv and of phases, and the positions, must be adjacent")
    if qkv.shape[0]:
        rows = qkv.shape[0]
        blocks = triton.cdiv(heads, HEADS_PER_PROGRAM)
        lanes = 32 * WARPS
        weight, stride, parts, programs = prefetch_of(then, rows, lanes, AFTER_ATTENTION_BYTES)
        _rotate[(rows + programs // blocks, blocks)](
            qkv,
            positions,
            phases,
            rows,
            heads,
            head_dim,
            qkv.stride(0),
            phases.stride(0),
            weight,
            stride,
            parts,
            BLOCK_HEADS=HEADS_PER_PROGRAM,
            BLOCK_DIM=triton.next_power_of_2(head_dim),
            LANES=lanes,
            num_warps=WARPS,
        )

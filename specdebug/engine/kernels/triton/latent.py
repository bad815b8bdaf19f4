"""One launch prepares a token for latent attention, between its projections and the attention itself.

The token's latent is normed and its key part turned, and both go to their slot of the pool; its queries' parts are
turned and go beside what was absorbed.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

HEADS_PER_PROGRAM = 8


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _turn_and_store(
    queries_ptr,
    row_ptr,
    positions_ptr,
    phases_ptr,
    gain_ptr,
    absorbed_ptr,
    rows_ptr,
    slots_ptr,
    eps,
    heads,
    latent,
    query_stride,
    query_head_stride,
    row_stride,
    absorbed_stride,
    absorbed_head_stride,
    slot_stride,
    slots_step,
    PART: tl.constexpr,
    BLOCK_PART: tl.constexpr,
    BLOCK_LATENT: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """Grid: (n, 1 + blocks of heads); the first program of a token stores its row."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + token).to(tl.int64)
    lane = tl.arange(0, BLOCK_PART)
    live_lane = lane < PART
    phase = tl.load(phases_ptr + position * PART + lane, mask=live_lane, other=0.0)
    cos, sin = tl.split(tl.reshape(phase, (BLOCK_PART // 2, 2)))
    if tl.program_id(1) == 0:
        slot = tl.load(slots_ptr + token * slots_step).to(tl.int64)
        target = rows_ptr + slot * slot_stride
        source = row_ptr + token * row_stride
        column = tl.arange(0, BLOCK_LATENT)
        live = column < latent
        stored = tl.load(source + column, mask=live, other=0.0)
        gain = tl.load(gain_ptr + column, mask=live, other=0.0)
        x = stored.to(tl.float32)
        normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / latent + eps)
        # rounded before the gain, as in norm.py
        normed = normed.to(stored.dtype).to(tl.float32) * gain.to(tl.float32)
        tl.store(target + column, normed.to(stored.dtype).to(rows_ptr.dtype.element_ty), mask=live)
        part = tl.load(source + latent + lane, mask=live_lane, other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(part, (BLOCK_PART // 2, 2)))
        turned = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (BLOCK_PART,))
        turned = turned.to(stored.dtype).to(rows_ptr.dtype.element_ty)
        tl.store(target + latent + lane, turned, mask=live_lane)
    else:
        head = (tl.program_id(1) - 1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        live_parts = (head < heads)[:, None] & live_lane[None, :]
        cells = queries_ptr + token * query_stride + head[:, None] * query_head_stride + lane[None, :]
        parts = tl.load(cells, mask=live_parts, other=0.0).to(tl.float32)
        even, odd = tl.split(tl.reshape(parts, (BLOCK_HEADS, BLOCK_PART // 2, 2)))
        # names of their own: to the compiler a variable has one shape in both branches
        c, s = cos[None, :], sin[None, :]
        turned_parts = tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), (BLOCK_HEADS, BLOCK_PART))
        places = absorbed_ptr + token * absorbed_stride + head[:, None] * absorbed_head_stride + latent + lane[None, :]
        tl.store(places, turned_parts.to(absorbed_ptr.dtype.element_ty), mask=live_parts)


def turn_and_store(
    queries: Tensor,
    row: Tensor,
    positions: Tensor,
    phases: Tensor,
    gain: Tensor,
    eps: float,
    absorbed: Tensor,
    rows: Tensor,
    slots: Tensor,
) -> None:
    """Turn queries [n, Hq, R] to the last R columns of absorbed [n, Hq, C + R], and store row [n, C + R], its first C
    columns normed by ``gain`` [C] and the rest turned, in rows [N, 1, C + R] at int64 ``slots`` [n], unchecked.

    positions [n] int64, unchecked. phases [P, R] float32: cosine and sine of pair j at 2j and 2j+1 of its position's
    row; pairs are adjacent. Computed in float32. Raises ValueError if the elements of a row are not adjacent.
    """
    adjacent = all(tensor.stride(-1) == 1 for tensor in (queries, row, absorbed, rows))
    if not adjacent or not all(tensor.is_contiguous() for tensor in (positions, phases, gain)):
        raise ValueError("turn_and_store: elements of a row must be adjacent, positions, phases and gain contiguous")
    count, heads, part = queries.shape
    if count == 0:
        return
    latent = gain.numel()
    _turn_and_store[(count, 1 + triton.cdiv(heads, HEADS_PER_PROGRAM))](
        queries,
        row,
        positions,
        phases,
        gain,
        absorbed,
        rows,
        slots,
        eps,
        heads,
        latent,
        *queries.stride()[:2],
        row.stride(0),
        *absorbed.stride()[:2],
        rows.stride(0),
        slots.stride(0),
        PART=part,
        BLOCK_PART=triton.next_power_of_2(part),
        BLOCK_LATENT=triton.next_power_of_2(latent),
        BLOCK_HEADS=HEADS_PER_PROGRAM,
    )

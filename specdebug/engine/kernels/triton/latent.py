"""One launch prepares tokens for latent attention, between their projections and the attention itself.

A token's latent is normed and its key part turned, and both go to their slot of the pool. Its queries are multiplied by
the keys' up-projection, head by head, and their parts are turned and go beside that.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.triton.head_linear import multiply_head, rows_at_once

HEADS_PER_PROGRAM = 8
_COLUMNS = 64
_DEPTH = 64


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
        blocks = tl.cdiv(latent, COLUMNS)
        multiply_head(
            queries_ptr,
            up_ptr,
            absorbed_ptr,
            pid // blocks % heads,
            pid % blocks * COLUMNS + tl.arange(0, COLUMNS),
            pid // (blocks * heads) * ROWS + tl.arange(0, ROWS),
            count,
            latent,
            nope,
            query_stride,
            query_head_stride,
            up_head_stride,
            up_stride,
            1,
            absorbed_stride,
            absorbed_head_stride,
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
        # rounded before the gain, as in norm.py
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
    part = queries.shape[2] - nope
    block = rows_at_once(count)
    products = heads * triton.cdiv(latent, _COLUMNS) * triton.cdiv(count, block)
    _absorb_and_store[(products + count * (1 + triton.cdiv(heads, HEADS_PER_PROGRAM)),)](
        queries,
        up,
        row,
        positions,
        phases,
        gain,
        absorbed,
        rows,
        slots,
        eps,
        count,
        heads,
        latent,
        nope,
        products,
        *queries.stride()[:2],
        *up.stride()[:2],
        row.stride(0),
        *absorbed.stride()[:2],
        rows.stride(0),
        slots.stride(0),
        PART=part,
        BLOCK_PART=triton.next_power_of_2(part),
        BLOCK_LATENT=triton.next_power_of_2(latent),
        BLOCK_HEADS=HEADS_PER_PROGRAM,
        ROWS=block,
        COLUMNS=_COLUMNS,
        DEPTH=_DEPTH,
        num_warps=4,
    )

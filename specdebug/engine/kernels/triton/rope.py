"""Rotary position embedding of a fused qkv row in one launch, which may put keys and values into their cache too."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.kv_cache import KVDestination

HEADS_PER_PROGRAM = 8


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _rotate(
    qkv_ptr,
    positions_ptr,
    phases_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slots_ptr,
    heads,
    kv_heads,
    head_dim,
    qkv_stride,
    phases_stride,
    slot_stride,
    slots_step,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    lane = tl.arange(0, BLOCK_DIM)
    position = tl.load(positions_ptr + row).to(tl.int64)
    if k_cache_ptr is not None:
        slot = tl.load(slots_ptr + row * slots_step).to(tl.int64)
    phase = tl.load(phases_ptr + position * phases_stride + lane, mask=lane < head_dim, other=0.0)
    cos, sin = tl.split(tl.reshape(phase, (BLOCK_DIM // 2, 2)))
    cos = cos[None, :]
    sin = sin[None, :]
    cells = qkv_ptr + row * qkv_stride + head[:, None] * head_dim + lane[None, :]
    last = heads if k_cache_ptr is None else heads + kv_heads
    live = (head < last)[:, None] & (lane < head_dim)[None, :]
    stored = tl.load(cells, mask=live, other=0.0)
    a, b = tl.split(tl.reshape(stored.to(tl.float32), (BLOCK_HEADS, BLOCK_DIM // 2, 2)))
    turned = tl.join(a * cos - b * sin, a * sin + b * cos)
    turned = tl.reshape(turned, (BLOCK_HEADS, BLOCK_DIM)).to(stored.dtype)
    if k_cache_ptr is None:
        tl.store(cells, turned, mask=live)
    else:
        queries = heads - kv_heads
        tl.store(cells, turned, mask=live & (head < queries)[:, None])
        key = slot * slot_stride + (head - queries)[:, None] * head_dim + lane[None, :]
        value = slot * slot_stride + (head - heads)[:, None] * head_dim + lane[None, :]
        is_key = live & ((head >= queries) & (head < heads))[:, None]
        tl.store(k_cache_ptr + key, turned.to(k_cache_ptr.dtype.element_ty), mask=is_key)
        tl.store(v_cache_ptr + value, stored.to(v_cache_ptr.dtype.element_ty), mask=live & (head >= heads)[:, None])


def rotate(
    qkv: Tensor, positions: Tensor, phases: Tensor, heads: int, head_dim: int, cache: KVDestination | None = None
) -> None:
    """Turn the first ``heads`` heads of every row of qkv [n, >= heads*D], pairs adjacent, in place.

    positions [n] int64, unchecked. phases [P, W] float32, W >= D: cosine and sine of pair j at 2j and 2j+1 of its
    position's row. cache: as :func:`rotate_and_store` takes it. Raises ValueError if the elements of a row are not
    adjacent.
    """
    if qkv.stride(1) != 1 or phases.stride(1) != 1 or not positions.is_contiguous():
        raise ValueError("rotate: the elements of a row of qkv and of phases, and the positions, must be adjacent")
    rows = qkv.shape[0]
    if rows == 0:
        return
    k, v, slots = (None, None, None) if cache is None else cache
    kv_heads = 0 if k is None else k.shape[1]
    _rotate[(rows, triton.cdiv(heads + kv_heads, HEADS_PER_PROGRAM))](
        qkv,
        positions,
        phases,
        k,
        v,
        slots,
        heads,
        kv_heads,
        head_dim,
        qkv.stride(0),
        phases.stride(0),
        0 if k is None else k.stride(0),
        0 if slots is None else slots.stride(0),
        BLOCK_HEADS=HEADS_PER_PROGRAM,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
    )


def rotate_and_store(
    qkv: Tensor, positions: Tensor, phases: Tensor, heads: int, head_dim: int, cache: KVDestination
) -> None:
    """Turn ``heads`` query and key heads as :func:`rotate`, but put turned keys, and the values after them, in
    ``cache``, unchecked; only the queries of qkv [n, (heads + Hkv)*D] are turned in place. Raises ValueError if the
    elements of a row are not adjacent, or those of a slot."""
    slot = (head_dim, 1)
    if cache.k.stride() != cache.v.stride() or cache.k.stride()[1:] != slot or cache.k.shape[2] != head_dim:
        raise ValueError("rotate_and_store: k and v must be laid out alike, the elements of a slot adjacent")
    rotate(qkv, positions, phases, heads, head_dim, cache)

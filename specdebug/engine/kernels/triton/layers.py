"""A layer around its attention, on a GPU: norms, activation and rotary embedding, one launch each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.kv_cache import KVDestination

_SILU_BLOCK = 1024
_HEADS_PER_PROGRAM = 8


@triton.jit
def _normed(x_ptr, gain_ptr, width, eps, BLOCK: tl.constexpr):
    """One row, from x_ptr on, in its own dtype; its columns, and which of them there are."""
    column = tl.arange(0, BLOCK)
    live = column < width
    stored = tl.load(x_ptr + column, mask=live, other=0.0)
    gain = tl.load(gain_ptr + column, mask=live, other=0.0)
    x = stored.to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    # rounded before the gain, as transformers does; in float32 that changes nothing
    out = normed.to(stored.dtype).to(tl.float32) * gain.to(tl.float32)
    return out.to(stored.dtype), column, live


@triton.jit
def _rms_norm(x_ptr, gain_ptr, out_ptr, width, x_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    out, column, live = _normed(x_ptr + row * x_stride, gain_ptr, width, eps, BLOCK)
    tl.store(out_ptr + row * width + column, out, mask=live)


@triton.jit
def _rms_norm_pair(
    x_ptr, x_gain_ptr, y_ptr, y_gain_ptr, out_ptr, width, x_stride, y_stride, x_eps, y_eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    left, column, live = _normed(x_ptr + row * x_stride, x_gain_ptr, width, x_eps, BLOCK)
    tl.store(out_ptr + 2 * row * width + column, left, mask=live)
    right, column, live = _normed(y_ptr + row * y_stride, y_gain_ptr, width, y_eps, BLOCK)
    tl.store(out_ptr + (2 * row + 1) * width + column, right, mask=live)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Norm x [n, H] by gain [H], of one dtype (bf16, fp16, fp32), to new [n, H]; computed in float32.
    Raises ValueError if the elements of a row are not adjacent, or the gain is not one row's."""
    rows, width = x.shape
    _check(x, gain, width)
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    if rows:
        block = triton.next_power_of_2(width)
        _rms_norm[(rows,)](x, gain, out, width, x.stride(0), eps, BLOCK=block, num_warps=_warps(block))
    return out


def rms_norm_pair(x: Tensor, x_gain: Tensor, x_eps: float, y: Tensor, y_gain: Tensor, y_eps: float) -> Tensor:
    """Norm x and y, both [n, H], each as :func:`rms_norm` does, to the halves of new rows [n, 2·H]. Raises ValueError
    as that does, or if their shapes or dtypes differ."""
    rows, width = x.shape
    if y.shape != x.shape or y.dtype != x.dtype:
        raise ValueError(f"rms_norm_pair: {list(x.shape)} of {x.dtype} and {list(y.shape)} of {y.dtype} are no pair")
    _check(x, x_gain, width)
    _check(y, y_gain, width)
    out = torch.empty((rows, 2 * width), dtype=x.dtype, device=x.device)
    if rows:
        block = triton.next_power_of_2(width)
        strides = (x.stride(0), y.stride(0))
        _rms_norm_pair[(rows,)](
            x, x_gain, y, y_gain, out, width, *strides, x_eps, y_eps, BLOCK=block, num_warps=_warps(block)
        )
    return out


def _check(x: Tensor, gain: Tensor, width: int) -> None:
    if x.stride(1) != 1 or gain.shape != (width,) or not gain.is_contiguous():
        raise ValueError(f"rms_norm: rows of {width} elements must be adjacent, and the gain [{width}] contiguous")


def _warps(block: int) -> int:
    return min(16, max(1, block // 512))


@triton.jit
def _silu_mul(gate_up_ptr, out_ptr, width, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    gates = gate_up_ptr + row * row_stride + column
    stored = tl.load(gates, mask=live, other=0.0)
    up = tl.load(gates + width, mask=live, other=0.0).to(tl.float32)
    gate = stored.to(tl.float32)
    # rounded between the two steps, as two separate operations round; in float32 that changes nothing
    activated = (gate * tl.sigmoid(gate)).to(stored.dtype).to(tl.float32)
    tl.store(out_ptr + row * width + column, (activated * up).to(stored.dtype), mask=live)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Multiply SiLU of the first half of each row of gate_up [n, 2*I] (bf16, fp16, fp32) by the second, in float32.
    Raises ValueError if the elements of a row are not adjacent."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if gate_up.stride(1) != 1:
        raise ValueError("silu_mul: the elements of a row must be adjacent")
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        _silu_mul[(rows, triton.cdiv(width, _SILU_BLOCK))](gate_up, out, width, gate_up.stride(0), BLOCK=_SILU_BLOCK)
    return out


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
    grid = (rows, triton.cdiv(heads + kv_heads, _HEADS_PER_PROGRAM))
    strides = (qkv.stride(0), phases.stride(0), *(0 if each is None else each.stride(0) for each in (k, slots)))
    sizes = (heads, kv_heads, head_dim)
    tiles = (_HEADS_PER_PROGRAM, triton.next_power_of_2(head_dim))
    _rotate[grid](qkv, positions, phases, k, v, slots, *sizes, *strides, *tiles)


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

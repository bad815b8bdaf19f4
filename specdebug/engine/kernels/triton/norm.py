"""RMS norm of every row in one launch, of one tensor or of two that come to lie side by side."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


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

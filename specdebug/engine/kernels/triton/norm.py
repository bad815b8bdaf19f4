"""RMS norm of every row in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(x_ptr, gain_ptr, out_ptr, width, x_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    live = column < width
    stored = tl.load(x_ptr + row * x_stride + column, mask=live, other=0.0)
    gain = tl.load(gain_ptr + column, mask=live, other=0.0)
    x = stored.to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    # rounded before the gain, as transformers does; in float32 that changes nothing
    out = normed.to(stored.dtype).to(tl.float32) * gain.to(tl.float32)
    tl.store(out_ptr + row * width + column, out.to(stored.dtype), mask=live)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Norm x [n, H] by gain [H], of one dtype (bf16, fp16, fp32), to new [n, H]; computed in float32.
    Raises ValueError if the elements of a row are not adjacent, or the gain is not one row's."""
    rows, width = x.shape
    if x.stride(1) != 1 or gain.shape != (width,) or not gain.is_contiguous():
        raise ValueError(f"rms_norm: rows of {width} elements must be adjacent, and the gain [{width}] contiguous")
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    if rows:
        block = triton.next_power_of_2(width)
        warps = min(16, max(1, block // 512))
        _rms_norm[(rows,)](x, gain, out, width, x.stride(0), eps, BLOCK=block, num_warps=warps)
    return out

"""SiLU(gate) * up from the fused product of both, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


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
        _silu_mul[(rows, triton.cdiv(width, BLOCK))](gate_up, out, width, gate_up.stride(0), BLOCK=BLOCK)
    return out

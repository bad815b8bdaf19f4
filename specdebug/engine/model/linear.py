"""The layout of a weight matrix, and its product with a few rows.

A weight always has the shape [in, out]. On a CPU it is stored so, which makes the product of a few rows twice as fast.
Elsewhere it is a view of [out, in], as checkpoints hold it: a GPU's kernels for a few rows then read each output's
weights as one run.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Up to this many bf16 or fp16 rows on a GPU go to our own kernel if the weight is no larger than this; cuBLAS splits
# the sums of such a product and adds them in a second kernel. By ``benchmarks/gpu/gemm.py`` on an H200 with 6 rows ours
# takes 11.9 us against 13.5 for [4096, 4096], and 14.8 against 15.5 for [4096, 6144]. With the down projection of an 8B
# layer, [14336, 4096], a verify step is 4.598 ms against 4.619; gate_up, [4096, 28672], stays with cuBLAS, at 55.8 us
# against 58.0. Fewer outputs have too few programs, and sums must be split: with [10944, 2048] and one row ours takes
# 23.5 us at best, cuBLAS 17.1; with [2048, 3648], 6.9 and 6.9; with [2048, 2048], 6.5 and 6.1.
SKINNY_ROWS = 16
SKINNY_BYTES = 128 << 20
SKINNY_WIDTH = 4096


def empty_weight(size_in: int, size_out: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised weight [in, out]."""
    if device.type == "cpu":
        return torch.empty(size_in, size_out, dtype=dtype, device=device)
    return torch.empty(size_out, size_in, dtype=dtype, device=device).t()


def empty_weights(count: int, size_in: int, size_out: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised weights [count, in, out], each laid out as one alone is."""
    if device.type == "cpu":
        return torch.empty(count, size_in, size_out, dtype=dtype, device=device)
    return torch.empty(count, size_out, size_in, dtype=dtype, device=device).transpose(1, 2)


def as_weight(rows: Tensor) -> Tensor:
    """Rows [out, in] of a checkpoint as a weight [in, out]; shares their memory where the layout allows."""
    return rows.t().contiguous() if rows.device.type == "cpu" else rows.t()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x [n, in] @ weight [in, out] + bias [out] -> [n, out]."""
    if bias is not None:
        return torch.addmm(bias, x, weight)
    if _is_skinny(x, weight):
        from specdebug.engine.kernels.triton.products import skinny_gemm

        return skinny_gemm(x, weight)
    return torch.mm(x, weight)


def linear_into(base: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Add x [n, in] @ weight [in, out] to base [n, out] in place: ``addmm`` out of place first copies its addend."""
    if _is_skinny(x, weight):
        from specdebug.engine.kernels.triton.products import skinny_gemm

        return skinny_gemm(x, weight, base=base, out=base)
    return base.addmm_(x, weight)


def head_linear(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Write x [n, Hq, in] @ weight [Hq, in, out], head by head, to ``out`` [n, Hq, out]; return it."""
    if x.is_cuda:
        from specdebug.engine.kernels.triton import products

        return products.head_linear(x, weight, out)
    torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
    return out


def _is_skinny(x: Tensor, weight: Tensor) -> bool:
    if not x.is_cuda or x.shape[0] > SKINNY_ROWS or x.dtype not in (torch.bfloat16, torch.float16):
        return False
    return weight.shape[1] >= SKINNY_WIDTH and weight.numel() * weight.element_size() <= SKINNY_BYTES

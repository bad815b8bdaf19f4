"""Triton twin of :mod:`specdebug.engine.kernels.merge_pair`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from specdebug.engine.kernels.merge_pair import PartialAttention


def merge_pair(first: PartialAttention, second: PartialAttention) -> Tensor:
    num_heads, dim = first.out.shape[2:]
    num_rows = first.out.shape[0] * first.out.shape[1]
    assert second.out.shape[0] * second.out.shape[1] == num_rows
    assert first.out.is_contiguous()
    assert second.out.is_contiguous()
    merged = torch.empty((num_rows, num_heads, dim), dtype=first.out.dtype, device=first.out.device)
    if num_rows == 0:
        return merged
    _merge_pair[(num_rows * num_heads,)](
        first.out,
        first.lse,
        second.out,
        second.lse,
        merged,
        num_heads,
        first.out.shape[1],
        *first.lse.stride(),
        second.out.shape[1],
        *second.lse.stride(),
        DIM=dim,
        BLOCK_DIM=triton.next_power_of_2(dim),
        num_warps=1,
    )
    return merged


_NEVER_SPECIAL = ["num_heads", "q_len_a", "batch_a", "head_a", "query_a", "q_len_b", "batch_b", "head_b", "query_b"]


@triton.jit(do_not_specialize=_NEVER_SPECIAL)
def _merge_pair(
    out_a,
    lse_a,
    out_b,
    lse_b,
    merged,
    num_heads,
    q_len_a,
    batch_a,
    head_a,
    query_a,
    q_len_b,
    batch_b,
    head_b,
    query_b,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Merge one query and head; grid: (n × Hq,). batch_x, head_x, query_x: strides of a part's lse."""
    cell = tl.program_id(0)
    row = cell // num_heads
    head = (cell % num_heads).to(tl.int64)
    log_a = _log_of(lse_a, row, head, q_len_a, batch_a, head_a, query_a)
    log_b = _log_of(lse_b, row, head, q_len_b, batch_b, head_b, query_b)
    largest = tl.maximum(log_a, log_b)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    weight_a = tl.exp2((log_a - largest) * 1.4426950408889634)  # log2(e)
    weight_b = tl.exp2((log_b - largest) * 1.4426950408889634)
    total = weight_a + weight_b
    total = tl.where(total == 0.0, 1.0, total)
    dim = tl.arange(0, BLOCK_DIM)
    at = cell.to(tl.int64) * DIM + dim
    a = tl.load(out_a + at, mask=dim < DIM, other=0.0).to(tl.float32)
    b = tl.load(out_b + at, mask=dim < DIM, other=0.0).to(tl.float32)
    result = (a * weight_a + b * weight_b) / total
    tl.store(merged + at, result.to(merged.dtype.element_ty), mask=dim < DIM)


@triton.jit
def _log_of(lse, row, head, q_len, batch_stride, head_stride, query_stride):
    """The lse of query number ``row`` among all."""
    sequence = (row // q_len).to(tl.int64)
    query = (row % q_len).to(tl.int64)
    return tl.load(lse + sequence * batch_stride + head * head_stride + query * query_stride)

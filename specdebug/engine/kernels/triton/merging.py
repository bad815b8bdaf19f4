"""Attention over disjoint keys of the same queries, merged by log-sum-exp: two parts as FlashAttention gives them, or
those of several programs.

The latter are merged by a kernel of their own, or by the last program of a tile to finish. Either adds the parts in
their own order, so that results do not depend on which program it was.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.merge_pair import PartialAttention

_COLUMNS = 128  # of one program: with 64 parts what its registers hold


def merge_pair(first: PartialAttention, second: PartialAttention) -> Tensor:
    num_heads, dim = first.out.shape[2:]
    num_rows = first.out.shape[0] * first.out.shape[1]
    assert second.out.shape[0] * second.out.shape[1] == num_rows
    assert first.out.is_contiguous()
    assert second.out.is_contiguous()
    merged = torch.empty((num_rows, num_heads, dim), dtype=first.out.dtype, device=first.out.device)
    if num_rows:
        places = [(part.out.shape[1], *part.lse.stride()) for part in (first, second)]
        sizes = {"DIM": dim, "BLOCK_DIM": triton.next_power_of_2(dim), "num_warps": 1}
        _merge_pair[(num_rows * num_heads,)](*first, *second, merged, num_heads, *places[0], *places[1], **sizes)
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


def merge_splits(partial: Tensor, lse: Tensor, out: Tensor) -> None:
    """Merge parts float32 [n, Hq, S, D], their log weights [n, Hq, S], to ``out`` [n, Hq, D]; all contiguous.

    A part of -inf had no keys and is not read; zeros where no part had any.
    """
    num_rows, num_heads, splits, dim = partial.shape
    assert all(tensor.is_contiguous() for tensor in (partial, lse, out))
    if num_rows:
        block = min(triton.next_power_of_2(dim), _COLUMNS)
        grid = (num_rows * num_heads, triton.cdiv(dim, block))
        _merge_splits[grid](partial, lse, out, splits, dim, block, triton.next_power_of_2(splits))


@triton.jit(do_not_specialize=["splits"])
def _merge_splits(partial, lse, out, splits, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_SPLITS: tl.constexpr):
    """Grid: (n × Hq, blocks of columns)."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, BLOCK_SPLITS)
    dim = tl.program_id(1) * BLOCK_DIM + tl.arange(0, BLOCK_DIM)
    cell = row * splits + split
    logs = tl.load(lse + cell, mask=split < splits, other=float("-inf"))
    some = logs != float("-inf")
    largest = tl.max(logs, 0)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.exp2((logs - largest) * 1.4426950408889634)  # log2(e)
    parts = tl.load(partial + cell[:, None] * DIM + dim[None, :], mask=some[:, None] & (dim < DIM)[None, :], other=0.0)
    total = tl.sum(weights, 0)
    merged = tl.sum(parts * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * DIM + dim, merged.to(out.dtype.element_ty), mask=dim < DIM)


@triton.jit
def merge_if_last(
    partial,
    lse,
    out,
    ticket,
    arrivals,
    row,
    real,
    parts,
    all_splits,
    DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Merge the first ``parts`` of ``all_splits`` in the last of the ``arrivals`` programs of a tile.

    Each calls this when its part is stored; ``ticket`` is zero before and after. row: int64 [BLOCK_ROWS], numbers of
    the tile's rows in [n × Hq]. AT_ONCE parts are loaded before any is added, so one latency serves them all.
    """
    tl.debug_barrier()  # every thread's stores come before the one thread's release
    if tl.atomic_add(ticket, 1, sem="acq_rel") == arrivals - 1:
        dim = tl.arange(0, BLOCK_DIM)
        split = tl.arange(0, BLOCK_SPLITS)
        cell = row * all_splits
        wanted = real[:, None] & (split < parts)[None, :]
        # other programs' results: past this processor's own cache
        logs = tl.load(lse + cell[:, None] + split[None, :], mask=wanted, other=float("-inf"), cache_modifier=".cg")
        largest = tl.max(logs, 1)
        largest = tl.where(largest == float("-inf"), 0.0, largest)
        total = tl.sum(tl.exp2((logs - largest[:, None]) * 1.4426950408889634), 1)  # log2(e)
        result = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
        for first in range(0, parts, AT_ONCE):
            for offset in tl.static_range(AT_ONCE):
                number = first + offset
                there = real & (number < parts)
                log = tl.load(lse + cell + number, mask=there, other=float("-inf"), cache_modifier=".cg")
                inside = there[:, None] & (dim < DIM)[None, :]
                cells = partial + (cell + number)[:, None] * DIM + dim[None, :]
                part = tl.load(cells, mask=inside, other=0.0, cache_modifier=".cg")
                weight = tl.exp2((log - largest) * 1.4426950408889634)
                # a part without keys was never written: 0 × NaN would be NaN
                result += tl.where((log == float("-inf"))[:, None], 0.0, part * weight[:, None])
        result = result / tl.where(total == 0.0, 1.0, total)[:, None]
        at = out + row[:, None] * DIM + dim[None, :]
        tl.store(at, result.to(out.dtype.element_ty), mask=real[:, None] & (dim < DIM)[None, :])
        tl.store(ticket, 0)

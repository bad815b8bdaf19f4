"""Triton twin of :mod:`specdebug.engine.kernels.softmax_topk`: many programs to a row, the last of which merges.

Each finds the best of its share and the share's part of the softmax's sum: logits are read once, and probabilities
never written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.softmax_topk import MAX_FUSED
from specdebug.engine.kernels.triton.argmax import FEW_ROWS, as_key, index_of, value_of
from specdebug.engine.kernels.triton.tickets import tickets


def softmax_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Make k reductions one after another, up to ``MAX_FUSED``; logits are fp32, bf16 or fp16, 0 < k <= V."""
    if k > MAX_FUSED:
        return torch.topk(torch.softmax(logits, dim=-1, dtype=torch.float32), k, dim=-1)
    rows, width = logits.shape
    assert 0 < k <= width
    probs = torch.empty((rows, k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, k), dtype=torch.int64, device=logits.device)
    if rows == 0:
        return probs, ids
    block = 2048 if rows <= FEW_ROWS else 8192
    parts = triton.cdiv(width, block)
    _best_of_softmax[(parts, rows)](
        logits,
        probs,
        ids,
        torch.empty((rows, parts, k), dtype=torch.int64, device=logits.device),
        torch.empty((rows, parts), dtype=torch.float32, device=logits.device),
        tickets(logits.device, rows),
        width,
        *logits.stride(),
        K=k,
        BLOCK=block,
        BLOCK_K=triton.next_power_of_2(k),
        BLOCK_PARTS=triton.next_power_of_2(parts),
        BLOCK_KEYS=triton.next_power_of_2(parts * k),
        num_warps=4 if block <= 2048 else 8,
    )
    return probs, ids


@triton.jit
def _best_of_softmax(
    x_ptr,
    probs_ptr,
    ids_ptr,
    keys_ptr,
    sums_ptr,
    tickets_ptr,
    width,
    row_stride,
    column_stride,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Grid: (parts of a row, rows)."""
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    row = tl.program_id(1).to(tl.int64)
    place = tl.arange(0, BLOCK_K)
    column = part * BLOCK + tl.arange(0, BLOCK)
    cells = x_ptr + row * row_stride + column.to(tl.int64) * column_stride
    # what lies past the end loses to every real element by its index, and a row has at least K of those
    x = tl.load(cells, mask=column < width, other=float("-inf")).to(tl.float32)
    best = _largest(as_key(x, column), K, BLOCK_K)
    cell = row * parts + part
    tl.store(keys_ptr + cell * K + place, best, mask=place < K)
    largest = value_of(tl.max(best, 0))
    offset = tl.where(largest == float("-inf"), 0.0, largest)
    tl.store(sums_ptr + cell, tl.sum(tl.exp(x - offset), 0))
    tl.debug_barrier()  # every thread's stores come before the one thread's release
    if tl.atomic_add(tickets_ptr + row, 1, sem="acq_rel") == parts - 1:
        each = tl.arange(0, BLOCK_PARTS)
        live = each < parts
        others = row * parts + each
        candidate = tl.arange(0, BLOCK_KEYS)
        # other programs' results: past this processor's own cache
        keys = tl.load(
            keys_ptr + row * parts * K + candidate,
            mask=candidate < parts * K,
            other=-0x7FFFFFFFFFFFFFFF,
            cache_modifier=".cg",
        )
        top = _largest(keys, K, BLOCK_K)
        largest = value_of(tl.max(top, 0))
        firsts = tl.load(keys_ptr + others * K, mask=live, other=-0x7FFFFFFFFFFFFFFF, cache_modifier=".cg")
        sums = tl.load(sums_ptr + others, mask=live, other=0.0, cache_modifier=".cg")
        # infinity minus itself is NaN, as is whatever meets NaN: rows without a softmax
        total = tl.sum(tl.where(live, sums * tl.exp(value_of(firsts) - largest), 0.0), 0)
        prob = tl.exp(value_of(top) - largest) / total
        wanted = place < K
        tl.store(probs_ptr + row * K + place, prob, mask=wanted)
        tl.store(ids_ptr + row * K + place, tl.where(total != total, place.to(tl.int64), index_of(top)), mask=wanted)
        tl.store(tickets_ptr + row, 0)


@triton.jit
def _largest(keys, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """The K largest of distinct ``keys``, descending, in BLOCK_K places; each share's first is its largest."""
    place = tl.arange(0, BLOCK_K)
    best = tl.full([BLOCK_K], -0x7FFFFFFFFFFFFFFF, tl.int64)
    for number in tl.static_range(K):
        key = tl.max(keys, 0)
        best = tl.where(place == number, key, best)
        keys = tl.where(keys == key, -0x7FFFFFFFFFFFFFFF, keys)
    return best

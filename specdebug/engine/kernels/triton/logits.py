"""Triton twins of :mod:`specdebug.engine.kernels.logits` for fp32, bf16 and fp16.

Many programs share a row. Each finds the best of its part, and its share of the softmax's sum; the last to finish
merges them. Logits are read once, and probabilities never written.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.logits import MAX_FUSED

_FEW_ROWS = 16  # too few to occupy the device unless each has many programs


def tickets(device: torch.device, count: int) -> Tensor:
    """Counters int32 [>= count], zeros before and after a launch, by which a program sees that it is the last. All
    launches share them, so none may run beside another, and the first of a size must not be captured in a graph."""
    return _zeros(device, 1 << max(count - 1, 0).bit_length())


@lru_cache(maxsize=64)
def _zeros(device: torch.device, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)


def argmax(x):
    return _launch(x, 1, weighed=False)[1].squeeze(1)


def softmax_top1(logits):
    return _launch(logits, 1)


def softmax_topk(logits, k):
    """Make k reductions one after another, up to ``MAX_FUSED``; 0 < k <= V."""
    if k > MAX_FUSED:
        return torch.topk(torch.softmax(logits, dim=-1, dtype=torch.float32), k, dim=-1)
    assert 0 < k <= logits.shape[1]
    return _launch(logits, k)


def _launch(x: Tensor, k: int, *, weighed: bool = True) -> tuple[Tensor, Tensor]:
    """Probabilities [n, k], empty unless ``weighed``, and places [n, k]."""
    rows, width = x.shape
    probs = torch.empty((rows, k), dtype=torch.float32, device=x.device)
    ids = torch.empty((rows, k), dtype=torch.int64, device=x.device)
    if rows == 0:
        return probs, ids
    block = 2048 if rows <= _FEW_ROWS else 8192
    parts = triton.cdiv(width, block)
    keys = torch.empty((rows, parts, k), dtype=torch.int64, device=x.device)
    sums = torch.empty((rows, parts), dtype=torch.float32, device=x.device) if weighed else None
    outputs = (probs if weighed else None, ids, keys, sums, tickets(x.device, rows))
    sizes = [triton.next_power_of_2(size) for size in (k, parts, parts * k)]
    warps = 4 if block <= 2048 else 8
    _best_of_softmax[(parts, rows)](x, *outputs, width, *x.stride(), k, block, *sizes, num_warps=warps)
    return probs, ids


# A number and its index are one int64, so that one reduction finds the largest, and of equals the first. No key is as
# small as -0x7FFFFFFFFFFFFFFF, which stands for none.


@triton.jit
def as_key(x, index):
    """Order float32 ``x`` by value, NaN largest of all, and equals by index, the first largest."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # -0.0 becomes 0.0
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # negative numbers grow with their magnitude
    bits = tl.where(x != x, 0x7FFFFFFF, bits)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def value_of(key):
    """The float32 that a key was made of."""
    bits = (key >> 32).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


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
    """Grid: (parts of a row, rows). Without ``sums_ptr`` only places are found."""
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
    if sums_ptr is not None:
        largest = value_of(tl.max(best, 0))
        offset = tl.where(largest == float("-inf"), 0.0, largest)
        tl.store(sums_ptr + cell, tl.sum(tl.exp(x - offset), 0))
    tl.debug_barrier()  # every thread's stores come before the one thread's release
    if tl.atomic_add(tickets_ptr + row, 1, sem="acq_rel") == parts - 1:
        # other programs' results: past this processor's own cache
        candidate = tl.arange(0, BLOCK_KEYS)
        found = keys_ptr + row * parts * K
        keys = tl.load(found + candidate, mask=candidate < parts * K, other=-0x7FFFFFFFFFFFFFFF, cache_modifier=".cg")
        top = _largest(keys, K, BLOCK_K)
        index = 0x7FFFFFFF - (top & 0x7FFFFFFF)
        wanted = place < K
        if sums_ptr is not None:
            each = tl.arange(0, BLOCK_PARTS)
            live = each < parts
            largest = value_of(tl.max(top, 0))
            firsts = tl.load(found + each * K, mask=live, other=-0x7FFFFFFFFFFFFFFF, cache_modifier=".cg")
            sums = tl.load(sums_ptr + row * parts + each, mask=live, other=0.0, cache_modifier=".cg")
            # infinity minus itself is NaN, as is whatever meets NaN: rows without a softmax
            total = tl.sum(tl.where(live, sums * tl.exp(value_of(firsts) - largest), 0.0), 0)
            tl.store(probs_ptr + row * K + place, tl.exp(value_of(top) - largest) / total, mask=wanted)
            index = tl.where(total != total, place.to(tl.int64), index)
        tl.store(ids_ptr + row * K + place, index, mask=wanted)
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

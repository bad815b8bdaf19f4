"""Triton twins of :mod:`specdebug.engine.kernels.argmax` for fp32, bf16 and fp16: many programs to a row, the last of
which adds up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.triton.tickets import tickets

FEW_ROWS = 16  # too few to occupy the device unless each has many programs


def argmax(x: Tensor) -> Tensor:
    return _launch(x, None)


def softmax_top1(logits: Tensor) -> tuple[Tensor, Tensor]:
    probs = torch.empty((logits.shape[0], 1), dtype=torch.float32, device=logits.device)
    ids = _launch(logits, probs)
    return probs, ids.unsqueeze(1)


def _launch(x: Tensor, probs: Tensor | None) -> Tensor:
    rows, width = x.shape
    ids = torch.empty(rows, dtype=torch.int64, device=x.device)
    if rows == 0:
        return ids
    block = 2048 if rows <= FEW_ROWS else 8192
    parts = triton.cdiv(width, block)
    keys = torch.empty((rows, parts), dtype=torch.int64, device=x.device)
    sums = None if probs is None else torch.empty((rows, parts), dtype=torch.float32, device=x.device)
    _largest[(parts, rows)](
        x,
        ids,
        probs,
        keys,
        sums,
        tickets(x.device, rows),
        width,
        *x.stride(),
        BLOCK=block,
        BLOCK_PARTS=triton.next_power_of_2(parts),
        num_warps=4 if block <= 2048 else 8,
    )
    return ids


# A number and its index are one int64, so that one reduction finds the largest, and of equals the first.


@triton.jit
def as_key(x, index):
    """Order float32 ``x`` by value, NaN largest of all, and equals by index, the first largest.

    No key is as small as -0x7FFFFFFFFFFFFFFF, which can stand for none.
    """
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
def index_of(key):
    """The int64 index that a key was made of."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


@triton.jit
def _largest(
    x_ptr,
    ids_ptr,
    probs_ptr,
    keys_ptr,
    sums_ptr,
    tickets_ptr,
    width,
    row_stride,
    column_stride,
    BLOCK: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    """Grid: (parts of a row, rows)."""
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    row = tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    cells = x_ptr + row.to(tl.int64) * row_stride + column.to(tl.int64) * column_stride
    # what lies past the end loses to every real element by its index
    x = tl.load(cells, mask=column < width, other=float("-inf")).to(tl.float32)
    key = tl.max(as_key(x, column), 0)
    cell = row.to(tl.int64) * parts + part
    tl.store(keys_ptr + cell, key)
    if sums_ptr is not None:
        largest = value_of(key)
        offset = tl.where(largest == float("-inf"), 0.0, largest)
        tl.store(sums_ptr + cell, tl.sum(tl.exp(x - offset), 0))
    tl.debug_barrier()  # every thread's stores come before the one thread's release
    if tl.atomic_add(tickets_ptr + row, 1, sem="acq_rel") == parts - 1:
        each = tl.arange(0, BLOCK_PARTS)
        live = each < parts
        others = row.to(tl.int64) * parts + each
        # other programs' results: past this processor's own cache. No key is as small as what stands for none.
        keys = tl.load(keys_ptr + others, mask=live, other=-0x7FFFFFFFFFFFFFFF, cache_modifier=".cg")
        key = tl.max(keys, 0)
        index = index_of(key)
        if sums_ptr is not None:
            sums = tl.load(sums_ptr + others, mask=live, other=0.0, cache_modifier=".cg")
            largest = value_of(key)
            # infinity minus itself is NaN, as is whatever meets NaN: rows without a softmax
            sums = tl.where(live, sums * tl.exp(value_of(keys) - largest), 0.0)
            prob = 1.0 / tl.sum(sums, 0)
            tl.store(probs_ptr + row, prob)
            index = tl.where(prob != prob, 0, index)
        tl.store(ids_ptr + row, index)
        tl.store(tickets_ptr + row, 0)

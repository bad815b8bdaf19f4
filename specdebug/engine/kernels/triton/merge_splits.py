"""Attention by several programs over disjoint keys of the same queries, merged by log-sum-exp.

A kernel of its own merges, or the last program of a tile to finish. Either adds the parts in their own order, so that
results do not depend on which program it was.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 128  # of one program: with 64 parts what its registers hold


def merge_splits(partial: Tensor, lse: Tensor, out: Tensor) -> None:
    """Merge parts float32 [n, Hq, S, D], their log weights [n, Hq, S], to ``out`` [n, Hq, D]; all contiguous.

    A part of -inf had no keys and is not read; zeros where no part had any.
    """
    num_rows, num_heads, splits, dim = partial.shape
    assert all(tensor.is_contiguous() for tensor in (partial, lse, out))
    if num_rows == 0:
        return
    block = min(triton.next_power_of_2(dim), _COLUMNS)
    _merge_splits[(num_rows * num_heads, triton.cdiv(dim, block))](
        partial,
        lse,
        out,
        splits,
        DIM=dim,
        BLOCK_DIM=block,
        BLOCK_SPLITS=triton.next_power_of_2(splits),
    )


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
                log = tl.load(
                    lse + cell + number, mask=real & (number < parts), other=float("-inf"), cache_modifier=".cg"
                )
                inside = (real & (number < parts))[:, None] & (dim < DIM)[None, :]
                part = tl.load(
                    partial + (cell + number)[:, None] * DIM + dim[None, :],
                    mask=inside,
                    other=0.0,
                    cache_modifier=".cg",
                )
                weight = tl.exp2((log - largest) * 1.4426950408889634)
                # a part without keys was never written: 0 × NaN would be NaN
                result += tl.where((log == float("-inf"))[:, None], 0.0, part * weight[:, None])
        result = result / tl.where(total == 0.0, 1.0, total)[:, None]
        at = out + row[:, None] * DIM + dim[None, :]
        tl.store(at, result.to(out.dtype.element_ty), mask=real[:, None] & (dim < DIM)[None, :])
        tl.store(ticket, 0)

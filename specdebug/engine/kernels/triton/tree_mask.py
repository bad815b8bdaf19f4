"""Triton twin of :mod:`specdebug.engine.kernels.tree_mask`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024
_MAX_PROGRAMS = 16
_MIN_BATCH_TILE = 64  # one compiled kernel for all smaller batches


def flat_tree_mask(tree_mask: Tensor, seq_lens: Tensor, bits: Tensor) -> Tensor:
    batch, nodes = tree_mask.shape[:2]
    starts = torch.empty(batch, dtype=torch.int64, device=bits.device)
    if batch == 0:
        return starts
    longest = bits.numel() // nodes  # no row is longer if all fits; programs stride on in any case
    grid = (batch, nodes, max(1, min(triton.cdiv(longest, _TILE), _MAX_PROGRAMS)))
    _write_bits[grid](
        tree_mask.view(torch.uint8),
        seq_lens,
        bits.view(torch.uint8),
        starts,
        *tree_mask.stride(),
        NODES=nodes,
        BATCH_TILE=max(triton.next_power_of_2(batch), _MIN_BATCH_TILE),
        TILE=_TILE,
    )
    return starts


@triton.jit
def _write_bits(
    tree,
    lengths,
    bits,
    starts,
    batch_stride,
    row_stride,
    column_stride,
    NODES: tl.constexpr,
    BATCH_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    b = tl.program_id(0)
    row = tl.program_id(1)
    other = tl.arange(0, BATCH_TILE)
    before = tl.load(lengths + other, mask=other < b, other=0).to(tl.int64)
    start = NODES * tl.sum(tl.where(other < b, before + NODES, 0), axis=0)
    tl.store(starts + b, start, mask=(row == 0) & (tl.program_id(2) == 0))
    prefix = tl.load(lengths + b).to(tl.int64)
    width = prefix + NODES
    source = tree + b.to(tl.int64) * batch_stride + row * row_stride
    target = bits + start + row * width
    first = tl.program_id(2).to(tl.int64) * TILE
    stride = tl.num_programs(2) * TILE
    while first < width:
        column = first + tl.arange(0, TILE)
        inside = column < width
        node = column - prefix
        bit = tl.load(source + node * column_stride, mask=inside & (node >= 0), other=1)
        tl.store(target + column, bit, mask=inside)
        first += stride

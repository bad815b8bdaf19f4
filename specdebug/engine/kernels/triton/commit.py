"""Triton twins of :mod:`specdebug.engine.kernels.commit`, each one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_MAX_TILE = 2048


def accepted_locs(
    accept_index: Tensor, out_cache_loc: Tensor, tree_size: int, src_loc: Tensor, tgt_loc: Tensor
) -> tuple[Tensor, Tensor]:
    """Write src_loc and tgt_loc where a node was accepted and nowhere else; return them."""
    batch, width = accept_index.shape
    if batch:
        tile = triton.next_power_of_2(width)
        _write_locs[(batch,)](
            accept_index, out_cache_loc, src_loc, tgt_loc, WIDTH=width, NODES=tree_size, TILE=tile, num_warps=1
        )
    return src_loc, tgt_loc


def compact(
    accept_index: Tensor, predict: Tensor, num_correct_drafts: Tensor, features: Tensor, tree_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    batch, width = accept_index.shape
    rows, size = batch * tree_size, features.shape[1]
    tokens = torch.empty(rows, dtype=torch.int64, device=features.device)
    front = torch.empty((rows, size), dtype=features.dtype, device=features.device)
    lengths = torch.empty(batch, dtype=torch.int64, device=features.device)
    if batch:
        tile = min(triton.next_power_of_2(size), _MAX_TILE)
        _copy_accepted[(rows, triton.cdiv(size, tile))](
            accept_index,
            predict,
            num_correct_drafts,
            features,
            tokens,
            front,
            lengths,
            *features.stride(),
            WIDTH=width,
            NODES=tree_size,
            SIZE=size,
            TILE=tile,
        )
    return tokens, front, lengths


@triton.jit
def _write_locs(accept_index, slots, src_loc, tgt_loc, WIDTH: tl.constexpr, NODES: tl.constexpr, TILE: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    rank = tl.arange(0, TILE)
    node = tl.load(accept_index + b * WIDTH + rank, mask=rank < WIDTH, other=-1)
    accepted = node >= 0
    src = tl.load(slots + node, mask=accepted, other=0)
    tgt = tl.load(slots + b * NODES + rank, mask=accepted & (rank < NODES), other=0)
    tl.store(src_loc + b * WIDTH + rank, src, mask=accepted)
    tl.store(tgt_loc + b * WIDTH + rank, tgt, mask=accepted)


@triton.jit
def _copy_accepted(
    accept_index,
    predict,
    correct,
    features,
    tokens,
    front,
    lengths,
    row_stride,
    column_stride,
    WIDTH: tl.constexpr,
    NODES: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    b = row // NODES
    rank = row % NODES
    node = tl.load(accept_index + b * WIDTH + rank, mask=rank < WIDTH, other=-1)
    accepted = node >= 0
    source = tl.where(accepted, node.to(tl.int64), b * NODES)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < SIZE
    values = tl.load(features + source * row_stride + column * column_stride, mask=inside, other=0)
    tl.store(front + row * SIZE + column, values, mask=inside)
    first = tl.program_id(1) == 0
    token = tl.load(predict + source)
    tl.store(tokens + row, tl.where(accepted, token.to(tl.int64), 0), mask=first)
    length = tl.load(correct + b).to(tl.int64) + 1
    tl.store(lengths + b, length, mask=first & (rank == 0))

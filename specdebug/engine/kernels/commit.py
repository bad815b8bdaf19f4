"""A commit gathers the slots of accepted nodes, their predictions and their features."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specdebug.engine.kernels.twin import triton_on_gpu


@triton_on_gpu
def accepted_locs(
    accept_index: Tensor, out_cache_loc: Tensor, tree_size: int, src_loc: Tensor, tgt_loc: Tensor
) -> tuple[Tensor, Tensor]:
    """The slots of accepted nodes and those they belong in; src_loc and tgt_loc where nothing was accepted.

    accept_index: int32 [B, S+1], flat nodes, negative for none. out_cache_loc: int64 [B·T]. src_loc, tgt_loc: int64
    [B, S+1]; on a device they are written and returned.
    """
    batch, width = accept_index.shape
    accepted = accept_index >= 0
    node = accept_index.clamp(min=0).view(-1)
    src = torch.where(accepted, out_cache_loc.index_select(0, node).view(batch, width), src_loc)
    front = out_cache_loc.view(batch, tree_size)[:, :width]
    if tree_size < width:  # entries past the tree are never accepted
        front = functional.pad(front, (0, width - tree_size))
    return src, torch.where(accepted, front, tgt_loc)


@triton_on_gpu
def compact(
    accept_index: Tensor, predict: Tensor, num_correct_drafts: Tensor, features: Tensor, tree_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Move each request's accepted entries to the front of its T rows.

    accept_index: int32 [B, S+1]. predict: int32 [B·T]. num_correct_drafts: int32 [B]. features: [B·T, F].
    Returns predict int64 [B·T] (0 past the accepted), features [B·T, F] (past the accepted the root's), and the counts
    of accepted nodes int64 [B], the root included.
    """
    batch, width = accept_index.shape
    # negative padding cuts, so this serves trees on both sides of S + 1 nodes
    index = functional.pad(accept_index, (0, tree_size - width), value=-1)
    root = torch.arange(0, batch * tree_size, tree_size, dtype=index.dtype, device=index.device).unsqueeze(1)
    accepted = index >= 0
    flat = torch.where(accepted, index, root).view(-1)
    tokens = predict.index_select(0, flat) * accepted.view(-1)
    return tokens.to(torch.int64), features.index_select(0, flat), num_correct_drafts.to(torch.int64) + 1

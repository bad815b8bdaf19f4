"""A commit gathers slots of accepted nodes, and their predictions and features."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def accepted_locs(
    accept_index: Tensor, out_cache_loc: Tensor, tree_size: int, src_loc: Tensor, tgt_loc: Tensor
) -> tuple[Tensor, Tensor]:
    """Slots of accepted nodes and where each belongs; src_loc and tgt_loc where nothing was accepted.

    accept_index: int32 [B, S+1], flat nodes, negative for none. out_cache_loc: int64 [B·T]. src_loc, tgt_loc: int64
    [B, S+1]; on a device they are written and returned.
    """
    if out_cache_loc.is_cuda:
        from specdebug.engine.kernels.triton import commit

        return commit.accepted_locs(accept_index, out_cache_loc, tree_size, src_loc, tgt_loc)
    batch, width = accept_index.shape
    accepted = accept_index >= 0
    node = accept_index.clamp(min=0).view(-1)
    src = torch.where(accepted, out_cache_loc.index_select(0, node).view(batch, width), src_loc)
    front = out_cache_loc.view(batch, tree_size)[:, :width]
    if tree_size < width:  # entries past the tree are never accepted
        front = functional.pad(front, (0, width - tree_size))
    return src, torch.where(accepted, front, tgt_loc)


def compact(
    accept_index: Tensor, predict: Tensor, num_correct_drafts: Tensor, features: Tensor, tree_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Each request's accepted entries moved to the front of its T rows.

    accept_index: int32 [B, S+1]. predict: int32 [B·T]. num_correct_drafts: int32 [B]. features: [B·T, F].
    Returns predict int64 [B·T] (0 past the accepted), features [B·T, F] (past the accepted the root's), and int64 [B],
    how many were accepted, the root included.
    """
    if features.is_cuda:
        from specdebug.engine.kernels.triton import commit

        return commit.compact(accept_index, predict, num_correct_drafts, features, tree_size)
    batch, width = accept_index.shape
    # negative padding cuts, so this serves trees on both sides of S + 1 nodes
    index = functional.pad(accept_index, (0, tree_size - width), value=-1)
    root = torch.arange(0, batch * tree_size, tree_size, dtype=index.dtype, device=index.device).unsqueeze(1)
    accepted = index >= 0
    flat = torch.where(accepted, index, root).view(-1)
    tokens = predict.index_select(0, flat) * accepted.view(-1)
    return tokens.to(torch.int64), features.index_select(0, flat), num_correct_drafts.to(torch.int64) + 1

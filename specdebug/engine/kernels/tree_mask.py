"""The flat attention mask of a tree verify batch."""

from __future__ import annotations

import torch
from torch import Tensor


def flat_tree_mask(tree_mask: Tensor, seq_lens: Tensor, bits: Tensor) -> Tensor:
    """Lay out FULL_MASK: per request T rows of L prefix bits (all set) and T tree bits, one after another.

    tree_mask: bool [B, T, T]. seq_lens: int64 [B]. bits: bool, 1-D, at least ΣL·T + B·T²; written.
    Returns int64 [B] offsets of each request's first bit.
    """
    nodes = tree_mask.shape[1]
    sizes = (seq_lens + nodes) * nodes
    ends = sizes.cumsum(0)
    starts = ends - sizes
    bits[: int(ends[-1])] = True
    row = torch.arange(nodes, device=seq_lens.device)
    row_start = starts.unsqueeze(1) + row * (seq_lens + nodes).unsqueeze(1) + seq_lens.unsqueeze(1)
    bits[row_start.unsqueeze(2) + row] = tree_mask
    return starts

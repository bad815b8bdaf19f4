"""The flat attention mask of a tree verify batch."""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.kernels.pointer import raw_block
from specdebug.engine.kernels.twin import triton_on_gpu


@triton_on_gpu
def flat_tree_mask(tree_mask: Tensor, seq_lens: Tensor, bits: Tensor) -> Tensor:
    """Lay out FULL_MASK: per request T rows of L prefix bits (all set) and T tree bits, one after another.

    tree_mask: bool [B, T, T]. seq_lens: int64 [B]. bits: bool, 1-D, at least ΣL·T + B·T²; written.
    Returns int64 [B] offsets of each request's first bit. Raises IllegalAddress if a request's bits leave the
    allocation behind ``bits``.
    """
    nodes = tree_mask.shape[1]
    starts: list[int] = []
    start = 0
    for length, tree in zip(seq_lens.tolist(), tree_mask, strict=True):
        size = nodes * (length + nodes)
        rows = raw_block(bits, start, size, "flat_tree_mask.bits").view(nodes, -1)
        rows[:, :length] = True
        rows[:, length:] = tree
        starts.append(start)
        start += size
    return torch.tensor(starts, device=bits.device)

"""Draft trees: their links and ancestor masks, and the masks of a verify batch."""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdebug.engine.kernels.pointer import raw_block
from specdebug.engine.kernels.twin import triton_on_gpu


class TreeLinks(NamedTuple):
    """int64 [B, T-1] parent node of nodes 1 .. T-1; bool [B, T, T] mask, [b, i, j] when j is i or an ancestor of i;
    int64 [B, T] depth, next_token (first child) and next_sibling, -1 for none."""

    parent: Tensor
    mask: Tensor
    depth: Tensor
    next_token: Tensor
    next_sibling: Tensor


@triton_on_gpu
def build_tree(parent_list: Tensor, top_scores_index: Tensor, topk: int) -> TreeLinks:
    """Link each request's nodes, parents first, and siblings in node order, so best first.

    parent_list: int64 [B, K(S-1)+1] or [B, 0], the candidate that group g continues, -1 for the root.
    top_scores_index: int64 [B, T-1], chosen candidates, ascending; a parent is chosen whenever its child is. A parent
    that was not chosen gives the node after its place, T when there is none: ``parent`` keeps it for a probe, the links
    take the last node instead. Source: SGLang ``build_tree_kernel_efficient``. Raises IndexError if a candidate belongs
    to no group of ``parent_list``.
    """
    batch, nodes = top_scores_index.shape[0], top_scores_index.shape[1] + 1
    mask = np.zeros((batch, nodes, nodes), dtype=np.bool_)
    links: list[tuple[list[int], ...]] = []
    groups: list[list[int]] = parent_list.tolist()
    for b, chosen in enumerate(top_scores_index.tolist()):
        rows = mask[b]
        rows[0, 0] = True
        parent, depth, sibling = [0] * nodes, [0] * nodes, [-1] * nodes
        for node, candidate in enumerate(chosen, 1):
            continued = groups[b][candidate // topk] if groups[b] else -1
            parent[node] = 0 if continued < 0 else bisect_left(chosen, continued) + 1
            above = min(parent[node], nodes - 1)
            depth[node] = depth[above] + 1
            rows[node] = rows[above]
            rows[node, node] = True
        child = [-1] * nodes
        for node in range(nodes - 1, 0, -1):
            above = min(parent[node], nodes - 1)
            sibling[node], child[above] = child[above], node
        links.append((parent, depth, child, sibling))
    packed = torch.tensor(list(zip(*links, strict=True)), device=top_scores_index.device)
    return TreeLinks(packed[0, :, 1:], torch.from_numpy(mask).to(packed.device), *packed[1:])


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


@triton_on_gpu
def pack_mask(
    bits: Tensor, mask_indptr: Tensor, kv_indptr: Tensor, q_len: int, packed: Tensor, packed_indptr: Tensor
) -> None:
    """Pack each sequence's q_len × kv_len bits, the first in a byte's lowest bit.

    bits: bool, flat; sequence b begins at ``mask_indptr[b]`` (int64 [B] or longer) and has q_len bits per key, of which
    ``kv_indptr`` (int32 [B + 1]) counts kv_len. packed: uint8, at least :func:`packed_size`; written. packed_indptr:
    int32 [B]; written, the byte that each sequence begins at: ``mask_indptr[b] // 8 + b`` is far enough behind the one
    before it, and needs no lengths added up. Raises IllegalAddress on a CPU if a sequence's bits lie outside ``bits``.
    """
    batch = kv_indptr.numel() - 1
    weights = 2 ** torch.arange(8)
    lengths = (kv_indptr[1:] - kv_indptr[:-1]).tolist()
    for b, (start, length) in enumerate(zip(mask_indptr[:batch].tolist(), lengths, strict=True)):
        size = q_len * length
        first, num_bytes = start // 8 + b, -(-size // 8)
        padded = torch.zeros(num_bytes * 8, dtype=torch.int64)
        padded[:size] = raw_block(bits, start, size, "pack_mask.bits")
        packed[first : first + num_bytes] = (padded.view(-1, 8) * weights).sum(dim=1)
        packed_indptr[b] = first


def packed_size(num_bits: int, batch: int) -> int:
    """The most bytes that ``num_bits`` bits of ``batch`` sequences take."""
    return num_bits // 8 + batch + 1

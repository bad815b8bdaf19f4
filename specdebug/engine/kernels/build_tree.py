"""Tree links and ancestor masks from chosen draft candidates."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

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
    parents: list[list[int]] = []
    depths: list[list[int]] = []
    children: list[list[int]] = []
    siblings: list[list[int]] = []
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
        parents.append(parent)
        depths.append(depth)
        children.append(child)
        siblings.append(sibling)
    packed = torch.tensor([parents, depths, children, siblings], device=top_scores_index.device)
    return TreeLinks(packed[0, :, 1:], torch.from_numpy(mask).to(packed.device), packed[1], packed[2], packed[3])

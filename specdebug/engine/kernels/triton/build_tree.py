"""Triton twin of :mod:`specdebug.engine.kernels.build_tree`: no order between nodes, each climbs on its own."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.build_tree import TreeLinks

_MAX_ROWS = 16


def build_tree(parent_list: Tensor, top_scores_index: Tensor, topk: int) -> TreeLinks:
    """A candidate that belongs to no group is looked up all the same, unchecked."""
    batch, nodes = top_scores_index.shape[0], top_scores_index.shape[1] + 1
    device = top_scores_index.device
    parent, depth, child, sibling = torch.empty((4, batch, nodes), dtype=torch.int64, device=device).unbind(0)
    mask = torch.empty((batch, nodes, nodes), dtype=torch.bool, device=device)
    if batch:
        tile = triton.next_power_of_2(nodes)
        rows = min(tile, _MAX_ROWS)
        _link_nodes[(batch, triton.cdiv(nodes, rows))](
            parent_list,
            top_scores_index,
            parent,
            depth,
            child,
            sibling,
            mask.view(torch.uint8),
            parent_list.stride(0),
            top_scores_index.stride(0),
            HAS_GROUPS=parent_list.shape[1] > 0,
            TOPK=topk,
            NODES=nodes,
            HALVINGS=(nodes - 1).bit_length(),
            ROWS=rows,
            TILE=tile,
        )
    return TreeLinks(parent[:, 1:], mask, depth, child, sibling)


@triton.jit
def _link_nodes(
    parent_list,
    chosen,
    parent,
    depth,
    child,
    sibling,
    mask,
    groups_stride,
    chosen_stride,
    HAS_GROUPS: tl.constexpr,
    TOPK: tl.constexpr,
    NODES: tl.constexpr,
    HALVINGS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    groups = parent_list + b * groups_stride
    chosen += b * chosen_stride
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, TILE)
    inside = row < NODES
    place = b * NODES + row
    above = _parents(groups, chosen, row, HAS_GROUPS, TOPK, NODES, HALVINGS)
    tl.store(parent + place, above.to(tl.int64), mask=inside)

    # children hang below the last node when their parent was not chosen; siblings are linked in node order
    above = tl.minimum(above, NODES - 1)
    others = tl.minimum(_parents(groups, chosen, column, HAS_GROUPS, TOPK, NODES, HALVINGS), NODES - 1)
    is_node = ((column > 0) & (column < NODES))[None, :]
    below = is_node & (others[None, :] == row[:, None])
    first = tl.min(tl.where(below, column[None, :], NODES), axis=1)
    beside = is_node & (others[None, :] == above[:, None]) & (column[None, :] > row[:, None]) & (row > 0)[:, None]
    following = tl.min(tl.where(beside, column[None, :], NODES), axis=1)
    tl.store(child + place, tl.where(first < NODES, first, -1).to(tl.int64), mask=inside)
    tl.store(sibling + place, tl.where(following < NODES, following, -1).to(tl.int64), mask=inside)

    # a parent after its child has no path yet when the child takes it over, so there the climb ends
    seen = column[None, :] == row[:, None]
    levels = (row > 0).to(tl.int32)
    node = tl.where(inside & (row > 0) & (above < row), above, -1)
    climbing = tl.max(node, axis=0)
    while climbing >= 0:
        seen = seen | (column[None, :] == node[:, None])
        levels += (node > 0).to(tl.int32)
        above = tl.minimum(_parents(groups, chosen, node, HAS_GROUPS, TOPK, NODES, HALVINGS), NODES - 1)
        node = tl.where((node > 0) & (above < node), above, -1)
        climbing = tl.max(node, axis=0)
    tl.store(depth + place, levels.to(tl.int64), mask=inside)
    bits = mask + place[:, None] * NODES + column[None, :]
    tl.store(bits, seen.to(tl.uint8), mask=inside[:, None] & (column < NODES)[None, :])


@triton.jit
def _parents(
    groups, chosen, node, HAS_GROUPS: tl.constexpr, TOPK: tl.constexpr, NODES: tl.constexpr, HALVINGS: tl.constexpr
):
    """The node that holds the candidate each node continues (its place if it was not chosen), 0 the root."""
    real = (node > 0) & (node < NODES)
    candidate = tl.load(chosen + (node - 1), mask=real, other=0)
    continued = tl.load(groups + candidate // TOPK, mask=real, other=-1) if HAS_GROUPS else candidate * 0 - 1
    low = tl.zeros_like(node)
    high = tl.full(node.shape, NODES - 1, tl.int32)
    for _ in tl.static_range(HALVINGS):
        open_ = low < high
        middle = (low + high) // 2
        right = open_ & (tl.load(chosen + middle, mask=open_, other=0) < continued)
        low = tl.where(right, middle + 1, low)
        high = tl.where(open_ & ~right, middle, high)
    return tl.where(continued < 0, 0, low + 1)

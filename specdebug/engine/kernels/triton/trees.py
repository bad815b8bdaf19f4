"""Triton twins of :mod:`specdebug.engine.kernels.trees`; lengths stay on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specdebug.engine.kernels.trees import TreeLinks

_MAX_ROWS = 16
_TILE = 1024
_MAX_PROGRAMS = 16
_MIN_BATCH_TILE = 64  # one compiled kernel for all smaller batches
_BYTES = 256
_PARTS = 8  # programs that share a sequence's bytes in turns: only the device knows how many there are


def build_tree(parent_list, top_scores_index, topk):
    """A candidate that belongs to no group is looked up all the same, unchecked."""
    batch, nodes = top_scores_index.shape[0], top_scores_index.shape[1] + 1
    device = top_scores_index.device
    parent, depth, child, sibling = torch.empty((4, batch, nodes), dtype=torch.int64, device=device).unbind(0)
    mask = torch.empty((batch, nodes, nodes), dtype=torch.bool, device=device)
    if batch:
        tile = triton.next_power_of_2(nodes)
        rows = min(tile, _MAX_ROWS)
        inputs = (parent_list, top_scores_index)
        outputs = (parent, depth, child, sibling, mask.view(torch.uint8))
        sizes = (parent_list.shape[1] > 0, topk, nodes, (nodes - 1).bit_length(), rows, tile)
        _link_nodes[(batch, triton.cdiv(nodes, rows))](*inputs, *outputs, *(each.stride(0) for each in inputs), *sizes)
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


def flat_tree_mask(tree_mask, seq_lens, bits):
    batch, nodes = tree_mask.shape[:2]
    starts = torch.empty(batch, dtype=torch.int64, device=bits.device)
    if batch == 0:
        return starts
    longest = bits.numel() // nodes  # no row is longer if all fits; programs stride on in any case
    grid = (batch, nodes, max(1, min(triton.cdiv(longest, _TILE), _MAX_PROGRAMS)))
    tensors = (tree_mask.view(torch.uint8), seq_lens, bits.view(torch.uint8), starts)
    batch_tile = max(triton.next_power_of_2(batch), _MIN_BATCH_TILE)
    _write_bits[grid](*tensors, *tree_mask.stride(), nodes, batch_tile, _TILE)
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


@triton.jit
def _pack_mask(bits, mask_indptr, kv_indptr, packed, packed_indptr, q_len, BYTES: tl.constexpr):
    b = tl.program_id(0)
    part = tl.program_id(1)
    start = tl.load(mask_indptr + b).to(tl.int64)
    length = tl.load(kv_indptr + b + 1).to(tl.int64) - tl.load(kv_indptr + b).to(tl.int64)
    num_bits = length * q_len
    first = start // 8 + b
    if part == 0:
        tl.store(packed_indptr + b, first.to(tl.int32))
    num_bytes = ((num_bits + 7) // 8).to(tl.int32)
    lane = tl.arange(0, 8)
    for base in range(part * BYTES, num_bytes, tl.num_programs(1) * BYTES):
        byte = base + tl.arange(0, BYTES)
        bit = byte[:, None].to(tl.int64) * 8 + lane[None, :]
        keep = tl.load(bits + start + bit, mask=bit < num_bits, other=0) != 0
        value = tl.sum(keep.to(tl.int32) << lane[None, :], axis=1)
        tl.store(packed + first + byte, value.to(tl.uint8), mask=byte < num_bytes)


def pack_mask(bits, mask_indptr, kv_indptr, q_len, packed, packed_indptr):
    tensors = (bits.view(torch.uint8), mask_indptr, kv_indptr, packed, packed_indptr)
    _pack_mask[(kv_indptr.numel() - 1, _PARTS)](*tensors, q_len, BYTES=_BYTES)

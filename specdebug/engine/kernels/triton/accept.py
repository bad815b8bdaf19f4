"""Triton twins of :mod:`specdebug.engine.kernels.accept`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_VOCAB_TILE = 4096
_MAX_TILE = 2048


def walk_greedy(tokens, next_token, next_sibling, target_ids, num_steps):
    return _launch_walk((tokens, next_token, next_sibling, target_ids), num_steps)


def walk_sampling(tokens, next_token, next_sibling, target_probs, coins, num_steps, threshold_single, threshold_acc):
    """Draw the bonus in two more launches: every block of the vocabulary sums its weights, then one program per request
    finds the block, and in it the token, that its coin names."""
    batch, nodes = tokens.shape
    device, vocab = tokens.device, target_probs.shape[2]
    rejected = torch.empty((batch, nodes), dtype=torch.int64, device=device)
    num_rejected = torch.empty(batch, dtype=torch.int32, device=device)
    drawn = (coins, rejected, num_rejected, _row_strides(coins)[0])
    thresholds = (float(threshold_single), float(threshold_acc))
    predict, accept_index, correct = _launch_walk(
        (tokens, next_token, next_sibling, target_probs), num_steps, drawn, thresholds
    )
    if batch == 0:
        return predict, accept_index, correct
    blocks = triton.cdiv(vocab, _VOCAB_TILE)
    sums = torch.empty((batch, 2, blocks), dtype=torch.float64, device=device)
    ends = torch.empty((batch, 2, blocks), dtype=torch.int32, device=device)
    walked = (target_probs, accept_index, correct, rejected, num_rejected, sums, ends)
    strides = (*_row_strides(target_probs), target_probs.stride(1))
    sizes = {"STEPS": num_steps, "NODES": nodes, "TILE": _VOCAB_TILE, "num_warps": 8}
    _sum_blocks[(batch, blocks)](*walked, *strides, vocab, **sizes)
    sizes |= {"BLOCKS": blocks, "BLOCK_TILE": triton.next_power_of_2(blocks)}
    _draw_bonus[(batch,)](*walked, coins, predict, *strides, coins.stride(0), vocab, **sizes)
    return predict, accept_index, correct


def _launch_walk(
    trees: tuple[Tensor, ...],
    num_steps: int,
    drawn: tuple[Tensor | None, Tensor | None, Tensor | None, int] = (None, None, None, 0),
    thresholds: tuple[float, float] = (0.0, 0.0),
) -> tuple[Tensor, Tensor, Tensor]:
    """Walk by coins if ``drawn`` holds them, the buffers of rejected tokens and the coins' stride, else greedily.
    ``trees``: tokens, next_token, next_sibling, and the target's ids or probabilities."""
    (batch, nodes), device = trees[0].shape, trees[0].device
    predict = torch.empty(batch * nodes, dtype=torch.int32, device=device)
    accept_index = torch.empty((batch, num_steps + 1), dtype=torch.int32, device=device)
    correct = torch.empty(batch, dtype=torch.int32, device=device)
    if batch:
        strides = (*_row_strides(*trees), trees[3].stride(1))
        tiles = (triton.next_power_of_2(num_steps + 1), triton.next_power_of_2(nodes))
        sizes = (num_steps, nodes, *tiles, *thresholds)
        _walk[(batch,)](*trees, *drawn, predict, accept_index, correct, *strides, *sizes, num_warps=1)
    return predict, accept_index, correct


def _row_strides(*tensors: Tensor) -> tuple[int, ...]:
    """The strides between rows, which may lie anywhere (a chain's links repeat one row), but must be contiguous."""
    for tensor in tensors:
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"rows must be contiguous; shape {tuple(tensor.shape)}, strides {tensor.stride()}")
    return tuple(tensor.stride(0) for tensor in tensors)


@triton.jit
def _walk(
    tokens,
    child,
    sibling,
    target,
    coins,
    rejected,
    num_rejected,
    coins_stride,
    predict,
    accept_index,
    correct,
    tokens_stride,
    child_stride,
    sibling_stride,
    target_stride,
    node_stride,
    STEPS: tl.constexpr,
    NODES: tl.constexpr,
    STEP_TILE: tl.constexpr,
    NODE_TILE: tl.constexpr,
    SINGLE: tl.constexpr,
    ACC: tl.constexpr,
):
    """Walk by ``coins`` over probabilities, and leave the tokens rejected below the last accepted node for the bonus;
    without coins walk greedily over the target's ids."""
    b = tl.program_id(0).to(tl.int64)
    tokens += b * tokens_stride
    child += b * child_stride
    sibling += b * sibling_stride
    target += b * target_stride
    place = tl.arange(0, NODE_TILE)
    depth = tl.arange(0, STEP_TILE)
    emitted = tl.zeros([NODE_TILE], tl.int32)
    path = tl.where(depth == 0, b * NODES, -1).to(tl.int32)
    here = tl.full((), 0, tl.int64)
    length = tl.full((), 1, tl.int32)
    refused = tl.full((), 0, tl.int32)
    mass = tl.full((), 0.0, tl.float64)
    node = tl.load(child)
    while (node >= 0) & (length <= STEPS):
        token = tl.load(tokens + node)
        if coins is None:
            taken = token == tl.load(target + here)
        else:
            coin = tl.load(coins + b * coins_stride + (length - 1)).to(tl.float64)
            p = tl.load(target + here * node_stride + token).to(tl.float64)
            mass += p
            # by way of an integer: the interpreter cannot spread the outcome of comparing floats over a tile
            taken = tl.where((coin < mass / ACC) | (p >= SINGLE), 1, 0) == 1
            tl.store(rejected + b * NODES + refused, token)
            refused = tl.where(taken, 0, refused + 1)
            mass = tl.where(taken, 0.0, mass)
        emitted = tl.where(taken & (place == here), token.to(tl.int32), emitted)
        path = tl.where(taken & (depth == length), (b * NODES + node).to(tl.int32), path)
        length += taken.to(tl.int32)
        here = tl.where(taken, node, here)
        node = tl.where(taken, tl.load(child + node), tl.load(sibling + node))
    if coins is None:
        emitted = tl.where(place == here, tl.load(target + here).to(tl.int32), emitted)
    else:
        tl.store(num_rejected + b, refused)
    tl.store(predict + b * NODES + place, emitted, mask=place < NODES)
    tl.store(accept_index + b * (STEPS + 1) + depth, path, mask=depth <= STEPS)
    tl.store(correct + b, length - 1)


@triton.jit
def _sum_blocks(
    probs,
    accept_index,
    correct,
    rejected,
    num_rejected,
    sums,
    ends,
    probs_stride,
    node_stride,
    vocab,
    STEPS: tl.constexpr,
    NODES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Store a block's weight and its last token of any weight: [b, 0] without rejected tokens, [b, 1] with them."""
    b = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    blocks = tl.num_programs(1)
    row = _last_node(accept_index, correct, b, STEPS) - b * NODES
    token = block * TILE + tl.arange(0, TILE)
    whole = tl.load(probs + b * probs_stride + row * node_stride + token, mask=token < vocab, other=0.0).to(tl.float64)
    rest = _without(whole, token, rejected + b * NODES, tl.load(num_rejected + b))
    out = b * 2 * blocks + block
    tl.store(sums + out, tl.sum(rest, axis=0))
    tl.store(sums + out + blocks, tl.sum(whole, axis=0))
    tl.store(ends + out, tl.max(tl.where(rest != 0, token, -1), axis=0))
    tl.store(ends + out + blocks, tl.max(tl.where(whole != 0, token, -1), axis=0))


@triton.jit
def _draw_bonus(
    probs,
    accept_index,
    correct,
    rejected,
    num_rejected,
    sums,
    ends,
    coins,
    predict,
    probs_stride,
    node_stride,
    coins_stride,
    vocab,
    STEPS: tl.constexpr,
    NODES: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Draw the first token whose running weight passes coin x total, never one without weight."""
    b = tl.program_id(0).to(tl.int64)
    node = _last_node(accept_index, correct, b, STEPS)
    block_number = tl.arange(0, BLOCK_TILE)
    exists = block_number < BLOCKS
    nothing_left = tl.max(tl.load(ends + b * 2 * BLOCKS + block_number, mask=exists, other=-1), axis=0) < 0
    summed = (b * 2 + nothing_left.to(tl.int64)) * BLOCKS
    parts = tl.load(sums + summed + block_number, mask=exists, other=0.0)
    last = tl.load(ends + summed + block_number, mask=exists, other=-1)
    drawn = tl.load(coins + b * coins_stride + STEPS + 1).to(tl.float64) * tl.sum(parts, axis=0)
    passed = (tl.cumsum(parts, axis=0) > drawn) & (last >= 0)
    first_passed = tl.min(tl.where(passed, block_number, BLOCKS), axis=0)
    last_weighted = tl.max(tl.where(last >= 0, block_number, 0), axis=0)
    block = tl.where(first_passed < BLOCKS, first_passed, last_weighted)
    below = tl.sum(tl.where(block_number < block, parts, 0.0), axis=0)

    token = block * TILE + tl.arange(0, TILE)
    place = probs + b * probs_stride + (node - b * NODES) * node_stride + token
    whole = tl.load(place, mask=token < vocab, other=0.0).to(tl.float64)
    rest = _without(whole, token, rejected + b * NODES, tl.load(num_rejected + b))
    weights = tl.where(nothing_left, whole, rest)
    hit = (below + tl.cumsum(weights, axis=0) > drawn) & (weights != 0)
    found = tl.min(tl.where(hit, token, vocab), axis=0)
    end = tl.load(ends + summed + block)  # rounding can leave a block's own sum short of the coin
    found = tl.where(found < vocab, found, tl.where(end >= 0, end, vocab - 1))
    tl.store(predict + node, found.to(tl.int32))


@triton.jit
def _last_node(accept_index, correct, b, STEPS: tl.constexpr):
    return tl.load(accept_index + b * (STEPS + 1) + tl.load(correct + b)).to(tl.int64)


@triton.jit
def _without(weights, token, rejected, count):
    i = 0
    while i < count:
        weights = tl.where(token == tl.load(rejected + i), 0.0, weights)
        i += 1
    return weights


def accepted_locs(accept_index, out_cache_loc, tree_size, src_loc, tgt_loc):
    """Write src_loc and tgt_loc where a node was accepted and nowhere else; return them."""
    batch, width = accept_index.shape
    if batch:
        sizes = (width, tree_size, triton.next_power_of_2(width))
        _write_locs[(batch,)](accept_index, out_cache_loc, src_loc, tgt_loc, *sizes, num_warps=1)
    return src_loc, tgt_loc


def compact(accept_index, predict, num_correct_drafts, features, tree_size):
    batch, width = accept_index.shape
    rows, size = batch * tree_size, features.shape[1]
    tokens = torch.empty(rows, dtype=torch.int64, device=features.device)
    front = torch.empty((rows, size), dtype=features.dtype, device=features.device)
    lengths = torch.empty(batch, dtype=torch.int64, device=features.device)
    if batch:
        tile = min(triton.next_power_of_2(size), _MAX_TILE)
        inputs = (accept_index, predict, num_correct_drafts, features)
        sizes = (width, tree_size, size, tile)
        _copy_accepted[(rows, triton.cdiv(size, tile))](*inputs, tokens, front, lengths, *features.stride(), *sizes)
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

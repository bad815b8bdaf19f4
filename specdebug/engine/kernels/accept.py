"""A walk over a batch of trees finds the drafts that the target accepts, and a commit gathers what belongs to them.

Walks take tokens, next_token (first child) and next_sibling, int64 [B, T], -1 for none, and return the fields of an
``Acceptance``: predict int32 [B·T], accept_index int32 [B, S+1], num_correct_drafts int32 [B].
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from specdebug.engine.kernels.twin import triton_on_gpu


@triton_on_gpu
def walk_greedy(
    tokens: Tensor, next_token: Tensor, next_sibling: Tensor, target_ids: Tensor, num_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Go from the root to the first child that the target wants, and on. target_ids: int64 [B, T]."""
    batch, nodes = tokens.shape
    drafts, wanted = tokens.tolist(), target_ids.tolist()
    child, sibling = next_token.tolist(), next_sibling.tolist()
    walked: list[tuple[list[int], list[int]]] = []
    for b in range(batch):
        path = [0]
        while len(path) <= num_steps:
            node = child[b][path[-1]]
            while node >= 0 and drafts[b][node] != wanted[b][path[-1]]:
                node = sibling[b][node]
            if node < 0:
                break
            path.append(node)
        walked.append((path, [wanted[b][node] for node in path]))
    return _pack(walked, nodes, num_steps, tokens.device)


@triton_on_gpu
def walk_sampling(
    tokens: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    target_probs: Tensor,
    coins: Tensor,
    num_steps: int,
    threshold_single: float,
    threshold_acc: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hold a node's coin against the cumulative mass of its children in turn; draw the bonus from the rest.

    target_probs: float32 [B, T, V]. coins: float32 [B, S+2], the last for the bonus. Probabilities add up in float64,
    on a device block by block: a coin within rounding of a boundary may fall to either side.
    """
    batch, nodes = tokens.shape
    drafts = tokens.tolist()
    child, sibling = next_token.tolist(), next_sibling.tolist()
    coin_rows = coins.tolist()
    walked: list[tuple[list[int], list[int]]] = []
    for b in range(batch):
        path, out = [0], []
        rejected: list[int] = []
        while len(path) <= num_steps:
            coin, mass = coin_rows[b][len(path) - 1], 0.0
            node = child[b][path[-1]]
            while node >= 0:
                token = drafts[b][node]
                p = float(target_probs[b, path[-1], token])
                mass += p
                if coin < mass / threshold_acc or p >= threshold_single:
                    break
                rejected.append(token)
                node = sibling[b][node]
            if node < 0:
                break
            path.append(node)
            out.append(drafts[b][node])
            rejected = []
        out.append(_draw(_without(target_probs[b, path[-1]], rejected), coin_rows[b][-1]))
        walked.append((path, out))
    return _pack(walked, nodes, num_steps, tokens.device)


def _without(probs: Tensor, rejected: Sequence[int]) -> Tensor:
    """The target's float64 weights [V] for the bonus, without the rejected tokens.

    Float sums may stay short of 1, so a coin can pass over drafts that hold all of the mass. Then they stay.
    """
    weights = probs.to(torch.float64)
    if not rejected:
        return weights
    rest = weights.clone()
    rest[rejected] = 0.0
    return rest if bool(rest.any()) else weights


def _draw(weights: Tensor, coin: float) -> int:
    """Draw by inverse CDF from unnormalised weights [V], never a token of zero weight."""
    cumulative = weights.cumsum(0)
    total = float(cumulative[-1])
    drawn = torch.tensor(coin * total, dtype=cumulative.dtype)
    index = int(torch.searchsorted(cumulative, drawn, right=True))
    last = weights.nonzero()
    return min(index, int(last[-1]) if last.numel() else weights.numel() - 1)


def _pack(
    walked: Sequence[tuple[list[int], list[int]]], nodes: int, num_steps: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The result of a path and what it emits, for each request."""
    predict = [0] * (len(walked) * nodes)
    accept_index: list[list[int]] = []
    for b, (path, out) in enumerate(walked):
        flat = [b * nodes + node for node in path]
        for node, token in zip(flat, out, strict=True):
            predict[node] = token
        accept_index.append(flat + [-1] * (num_steps + 1 - len(flat)))
    correct = [len(path) - 1 for path, _ in walked]
    found = [torch.tensor(each, dtype=torch.int32, device=device) for each in (predict, accept_index, correct)]
    return found[0], found[1], found[2]


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

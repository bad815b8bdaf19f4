"""Walks over a batch of trees find the drafts that the target accepts, and what it emits after each.

Both take tokens, next_token (first child) and next_sibling, int64 [B, T], -1 for none, and return the fields of an
``Acceptance``: predict int32 [B·T], accept_index int32 [B, S+1], num_correct_drafts int32 [B].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdebug.engine.kernels.twin import triton_on_gpu


@triton_on_gpu
def walk_greedy(
    tokens: Tensor, next_token: Tensor, next_sibling: Tensor, target_ids: Tensor, num_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Go from the root to the first child that the target wants, and on. target_ids: int64 [B, T]."""
    batch, nodes = tokens.shape
    drafts, wanted = tokens.tolist(), target_ids.tolist()
    child, sibling = next_token.tolist(), next_sibling.tolist()
    paths: list[list[int]] = []
    emitted: list[list[int]] = []
    for b in range(batch):
        path = [0]
        while len(path) <= num_steps:
            node = child[b][path[-1]]
            while node >= 0 and drafts[b][node] != wanted[b][path[-1]]:
                node = sibling[b][node]
            if node < 0:
                break
            path.append(node)
        paths.append(path)
        emitted.append([wanted[b][node] for node in path])
    return _pack(paths, emitted, nodes, num_steps, tokens.device)


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
    paths: list[list[int]] = []
    emitted: list[list[int]] = []
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
        paths.append(path)
        emitted.append(out)
    return _pack(paths, emitted, nodes, num_steps, tokens.device)


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
    paths: Sequence[Sequence[int]],
    emitted: Sequence[Sequence[int]],
    nodes: int,
    num_steps: int,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    predict = [0] * (len(paths) * nodes)
    accept_index: list[list[int]] = []
    for b, (path, out) in enumerate(zip(paths, emitted, strict=True)):
        flat = [b * nodes + node for node in path]
        for node, token in zip(flat, out, strict=True):
            predict[node] = token
        accept_index.append(flat + [-1] * (num_steps + 1 - len(flat)))
    return (
        torch.tensor(predict, dtype=torch.int32, device=device),
        torch.tensor(accept_index, dtype=torch.int32, device=device),
        torch.tensor([len(path) - 1 for path in paths], dtype=torch.int32, device=device),
    )

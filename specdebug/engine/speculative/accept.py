"""Which drafts the target accepts: greedy, or lossless tree speculative sampling.

Both walk the tree from the root: among a node's children take the one the target wants, stop when there is
none, and emit one more token (the bonus) from the target at the last accepted node.

Sources: EAGLE (arXiv:2401.15077); tree sampling as in SpecInfer (arXiv:2305.09781), with the target-only coin
scheme of SGLang's ``tree_speculative_sampling_target_only``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_oob
from specdebug.engine.speculative.tree import VerifyTree


@dataclass(frozen=True)
class Acceptance:
    """predict: int32 [B·T], at an accepted node the token that follows it, 0 elsewhere (every entry is
    embedded later). accept_index: int32 [B, S+1], flat nodes accepted, root first, -1 after.
    num_correct_drafts: int32 [B], drafts accepted, so A = num_correct_drafts + 1 tokens are emitted.
    """

    predict: Tensor
    accept_index: Tensor
    num_correct_drafts: Tensor

    def check(self, tree_size: int, vocab_size: int) -> None:
        """Probe what the next kernels will index with."""
        maybe_detect_oob(self.predict, 0, vocab_size, "accept.predict")
        maybe_detect_oob(self.accept_index, -1, self.predict.numel(), "accept.accept_index")
        longest = min(tree_size, self.accept_index.shape[1])
        maybe_detect_oob(self.num_correct_drafts, 0, longest, "accept.num_correct_drafts")


def accept_greedy(tree: VerifyTree, target_ids: Tensor, num_steps: int) -> Acceptance:
    """Follow the child that equals the target's argmax. target_ids: int64 [B, T], argmax at each node."""
    batch, nodes = tree.tokens.shape
    tokens, wanted = tree.tokens.tolist(), target_ids.tolist()
    child, sibling = tree.retrieve_next_token.tolist(), tree.retrieve_next_sibling.tolist()
    paths: list[list[int]] = []
    emitted: list[list[int]] = []
    for b in range(batch):
        path = [0]
        while len(path) <= num_steps:
            node = child[b][path[-1]]
            while node >= 0 and tokens[b][node] != wanted[b][path[-1]]:
                node = sibling[b][node]
            if node < 0:
                break
            path.append(node)
        paths.append(path)
        emitted.append([wanted[b][node] for node in path])
    return _pack(paths, emitted, nodes, num_steps, tree.tokens.device)


def accept_sampling(
    tree: VerifyTree,
    target_probs: Tensor,
    coins: Tensor,
    num_steps: int,
    *,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
) -> Acceptance:
    """Tree speculative sampling; with both thresholds 1.0 the output distribution is exactly the target's.

    At each accepted node one coin serves all children in turn: child c is accepted when the coin falls into
    the cumulative target mass of the children tried so far. When none is, the bonus is drawn from the target
    with the rejected children's mass removed.

    target_probs: float32 [B, T, V], rows sum to 1. coins: float32 [B, S+2] in [0, 1), the last for the bonus.
    """
    batch, nodes = tree.tokens.shape
    tokens = tree.tokens.tolist()
    child, sibling = tree.retrieve_next_token.tolist(), tree.retrieve_next_sibling.tolist()
    coin_rows = coins.tolist()
    paths: list[list[int]] = []
    emitted: list[list[int]] = []
    for b in range(batch):
        path, out = [0], []
        rejected: list[int] = []
        while len(path) <= num_steps:
            coin, mass = coin_rows[b][len(path) - 1], 0.0
            rejected = []
            node = child[b][path[-1]]
            while node >= 0:
                token = tokens[b][node]
                p = float(target_probs[b, path[-1], token])
                mass += p
                if coin < mass / threshold_acc or p >= threshold_single:
                    break
                rejected.append(token)
                node = sibling[b][node]
            if node < 0:
                break
            path.append(node)
            out.append(tokens[b][node])
            rejected = []
        out.append(_draw(_without(target_probs[b, path[-1]], rejected), coin_rows[b][-1]))
        paths.append(path)
        emitted.append(out)
    return _pack(paths, emitted, nodes, num_steps, tree.tokens.device)


def _without(probs: Tensor, rejected: Sequence[int]) -> Tensor:
    """float64 weights [V] of the bonus: the target's, less what was offered and rejected.

    Float sums may stay short of 1, so a coin can pass over drafts that hold all of the mass. Then nothing is
    left, and the drafts are what the target wants.
    """
    weights = probs.to(torch.float64)
    if not rejected:
        return weights
    rest = weights.clone()
    rest[rejected] = 0.0
    return rest if bool(rest.any()) else weights


def _draw(weights: Tensor, coin: float) -> int:
    """Inverse-CDF draw from unnormalised weights [V]; a token of zero weight is never drawn."""
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
) -> Acceptance:
    predict = [0] * (len(paths) * nodes)
    accept_index: list[list[int]] = []
    for b, (path, out) in enumerate(zip(paths, emitted, strict=True)):
        flat = [b * nodes + node for node in path]
        for node, token in zip(flat, out, strict=True):
            predict[node] = token
        accept_index.append(flat + [-1] * (num_steps + 1 - len(flat)))
    return Acceptance(
        torch.tensor(predict, dtype=torch.int32, device=device),
        torch.tensor(accept_index, dtype=torch.int32, device=device),
        torch.tensor([len(path) - 1 for path in paths], dtype=torch.int32, device=device),
    )

"""Stage 4, accept: the drafts that the target agrees with, greedy or by lossless tree speculative sampling.

Both walk the tree from the root: among a node's children take the one the target wants, stop when there is none, and
emit one more token (the bonus) from the target at the last accepted node.

Sources: EAGLE (arXiv:2401.15077); tree sampling as in SpecInfer (arXiv:2305.09781), with the target-only coin scheme of
SGLang's ``tree_speculative_sampling_target_only``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_oob
from specdebug.engine.config import SpeculativeConfig
from specdebug.engine.device import upload
from specdebug.engine.kernels.accept import walk_greedy, walk_sampling
from specdebug.engine.kernels.argmax import argmax
from specdebug.engine.textbook.request import Request
from specdebug.engine.textbook.sampler import request_generator, target_probs
from specdebug.engine.textbook.speculative.tree import VerifyTree


@dataclass(frozen=True)
class Acceptance:
    """predict: int32 [B·T], at an accepted node the token that follows it, 0 elsewhere (every entry is embedded later).
    accept_index: int32 [B, S+1], flat nodes accepted, root first, -1 after. num_correct_drafts: int32 [B], drafts
    accepted, so A = num_correct_drafts + 1 tokens are emitted. coins: float32 [B, S+2] on the host, where drawn."""

    predict: Tensor
    accept_index: Tensor
    num_correct_drafts: Tensor
    coins: Tensor | None = None

    def probe_indices(self, tree_size: int, vocab_size: int) -> None:
        """Probe what the next kernels will index with."""
        longest = min(tree_size, self.accept_index.shape[1])
        with grouped():
            maybe_detect_oob(self.predict, 0, vocab_size, "accept.predict")
            maybe_detect_oob(self.accept_index, -1, self.predict.numel(), "accept.accept_index")
            maybe_detect_oob(self.num_correct_drafts, 0, longest, "accept.num_correct_drafts")


def accept(
    requests: Sequence[Request], tree: VerifyTree, logits: Tensor, spec: SpeculativeConfig, seed: int
) -> Acceptance:
    """The nodes that the target accepts, by its logits [B·T, V]. Of a mixed batch, greedy requests are sampled from
    distributions that have all their mass at the argmax."""
    batch, nodes = tree.tokens.shape
    best = argmax(logits).view(batch, nodes)
    if all(request.sampling.greedy for request in requests):
        return accept_greedy(tree, best, spec.num_steps)
    rows = logits.view(batch, nodes, -1)
    probs = torch.zeros(rows.shape, dtype=torch.float32, device=logits.device)
    coins = torch.zeros(batch, spec.num_steps + 2)
    for b, request in enumerate(requests):
        if request.sampling.greedy:
            probs[b].scatter_(1, best[b].unsqueeze(1), 1.0)
        else:
            probs[b] = target_probs(rows[b], request.sampling)
            coins[b] = torch.rand(coins.shape[1], generator=request_generator(request, seed))
    acceptance = accept_sampling(
        tree,
        probs,
        upload(coins.numpy(), logits.device),
        spec.num_steps,
        threshold_single=spec.threshold_single,
        threshold_acc=spec.threshold_acc,
    )
    return replace(acceptance, coins=coins)


def accept_greedy(tree: VerifyTree, target_ids: Tensor, num_steps: int) -> Acceptance:
    """Follow the child that equals the target's argmax. target_ids: int64 [B, T], argmax at each node."""
    return Acceptance(*walk_greedy(*tree.links, target_ids, num_steps))


def accept_sampling(
    tree: VerifyTree,
    probs: Tensor,
    coins: Tensor,
    num_steps: int,
    *,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
) -> Acceptance:
    """Tree speculative sampling; with both thresholds 1.0 the output distribution is exactly the target's.

    At each accepted node one coin serves all children in turn: child c is accepted when the coin falls into the
    cumulative target mass of the children tried so far. When none is, the bonus is drawn from the target with the
    rejected children's mass removed.

    probs: float32 [B, T, V], the target's, rows sum to 1. coins: float32 [B, S+2] in [0, 1), the last for the bonus.
    """
    coins = coins.to(probs.device, non_blocking=True)
    return Acceptance(*walk_sampling(*tree.links, probs, coins, num_steps, threshold_single, threshold_acc))

"""Stages 4 and 5: the drafts that the target agrees with, and bringing what it accepted to the front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_oob
from specdebug.engine.config import SpeculativeConfig
from specdebug.engine.device import upload
from specdebug.engine.kernels.accept import accepted_locs, compact, walk_greedy, walk_sampling
from specdebug.engine.kernels.logits import argmax
from specdebug.engine.memory.arena import Scratch
from specdebug.engine.memory.kv_pool import KVPool
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

    At each accepted node one coin serves all children in turn: a child is accepted when the coin falls into the mass of
    those tried so far. When none is, the bonus is drawn from the target without the rejected children's mass.

    probs: float32 [B, T, V], the target's, rows sum to 1. coins: float32 [B, S+2] in [0, 1), the last for the bonus.
    """
    coins = coins.to(probs.device, non_blocking=True)
    return Acceptance(*walk_sampling(*tree.links, probs, coins, num_steps, threshold_single, threshold_acc))


def commit_kv(acceptance: Acceptance, slots: Tensor, spec: SpeculativeConfig, pool: KVPool, scratch: Scratch) -> None:
    """Bring accepted nodes' target KV to the front. A chain's already is. slots: int64 [B·T], the verify's."""
    if spec.eagle_topk > 1:
        plan = get_src_tgt_cache_loc(acceptance, slots, spec.tree_size, scratch)
        pool.move_kv_cache(plan.tgt_loc, plan.src_loc)


def compact_accepted(acceptance: Acceptance, features: Tensor, spec: SpeculativeConfig) -> Compacted:
    """Bring accepted tokens and their features to the front of each request's T rows."""
    if spec.eagle_topk == 1:
        return compact_chain(acceptance, features)
    return compact_accept_to_front(acceptance, features, spec.tree_size)


@dataclass(frozen=True)
class CacheMoves:
    """src_loc, tgt_loc: int64 [B·(S+1)]. Entries past a request's accepted nodes copy slot 0 onto itself."""

    src_loc: Tensor
    tgt_loc: Tensor


def get_src_tgt_cache_loc(
    acceptance: Acceptance, out_cache_loc: Tensor, tree_size: int, scratch: Scratch
) -> CacheMoves:
    """The slots where accepted KV lies and those where it belongs: S + 1 entries per request, of which A are written.
    The rest is copied all the same, so it names slot 0, the padding (SGLang PR 26335).

    out_cache_loc: int64 [B·T], the verify batch's slots in node order; a request's first A are its targets.
    """
    batch, width = acceptance.accept_index.shape
    src_loc = scratch.zeros((batch, width), torch.int64)
    tgt_loc = scratch.zeros((batch, width), torch.int64)
    src, tgt = accepted_locs(acceptance.accept_index, out_cache_loc, tree_size, src_loc, tgt_loc)
    return CacheMoves(src.view(-1), tgt.view(-1))


@dataclass(frozen=True)
class Compacted:
    """predict: int64 [B·T], accepted tokens first, then zeros. features: [B·T, F], rows matching predict.
    accept_lengths: int64 [B], A, the bonus included."""

    predict: Tensor
    features: Tensor
    accept_lengths: Tensor


def last_accepted_rows(accept_lengths: Tensor, tree_size: int) -> Tensor:
    """The row, among all B·T, of each request's last accepted token. accept_lengths: int64 [B]."""
    rows = accept_lengths.numel() * tree_size
    return torch.arange(-1, rows - 1, tree_size, device=accept_lengths.device) + accept_lengths


def compact_accept_to_front(acceptance: Acceptance, features: Tensor, tree_size: int) -> Compacted:
    """Gather accepted rows to the front of each request's T rows; those past A repeat the root and are not read."""
    maybe_detect_oob(acceptance.accept_index, -1, acceptance.predict.numel(), "commit.compact.rows")
    return Compacted(
        *compact(acceptance.accept_index, acceptance.predict, acceptance.num_correct_drafts, features, tree_size)
    )


def compact_chain(acceptance: Acceptance, features: Tensor) -> Compacted:
    """As :func:`compact_accept_to_front` for topk 1: a chain's accepted rows are the first ones already."""
    lengths = acceptance.num_correct_drafts.to(torch.int64) + 1
    return Compacted(acceptance.predict.to(torch.int64), features, lengths)

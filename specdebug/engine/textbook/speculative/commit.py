"""Stage 5, commit: bring accepted nodes to the front, in the KV pool and in the draft extend's inputs.

A verify wrote target KV of node i to row cell L + i. Accepted nodes must end up at L, L + 1, ...; everything else is
over-reserved space that the next step overwrites.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_oob
from specdebug.engine.config import SpeculativeConfig
from specdebug.engine.kernels.commit import accepted_locs, compact
from specdebug.engine.memory.fill import Scratch
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.textbook.speculative.accept import Acceptance


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
    """The slots where accepted KV lies and those where it belongs.

    The buffers cover S + 1 entries per request and only A of them are written. The rest is copied all the same, so it
    names slot 0, the padding (SGLang PR 26335).

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
    """Gather accepted rows of predict and hidden features to the front of each request's T rows.

    Rows past A repeat the root: they are embedded and attended by nothing that is kept.
    """
    maybe_detect_oob(acceptance.accept_index, -1, acceptance.predict.numel(), "commit.compact.rows")
    return Compacted(
        *compact(acceptance.accept_index, acceptance.predict, acceptance.num_correct_drafts, features, tree_size)
    )


def compact_chain(acceptance: Acceptance, features: Tensor) -> Compacted:
    """As :func:`compact_accept_to_front` for topk 1: a chain's accepted rows are the first ones already."""
    lengths = acceptance.num_correct_drafts.to(torch.int64) + 1
    return Compacted(acceptance.predict.to(torch.int64), features, lengths)

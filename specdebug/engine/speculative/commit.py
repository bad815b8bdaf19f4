"""After acceptance: bring what was accepted to the front, in the KV pool and in the draft extend's inputs.

A verify wrote target KV of node i to row cell L + i. Accepted nodes must end up at L, L + 1, ...; everything
else is over-reserved space that the next step overwrites.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specdebug.async_probe import maybe_detect_oob
from specdebug.engine.memory.fill import Scratch
from specdebug.engine.speculative.accept import Acceptance


@dataclass(frozen=True)
class MovePlan:
    """src_loc, tgt_loc: int64 [B·(S+1)]. Entries past a request's accepted nodes copy slot 0 onto itself."""

    src_loc: Tensor
    tgt_loc: Tensor


def get_src_tgt_cache_loc(
    acceptance: Acceptance, out_cache_loc: Tensor, tree_size: int, scratch: Scratch
) -> MovePlan:
    """Where accepted KV lies and where it belongs.

    The buffers cover S + 1 entries per request and only A of them are written, so what the rest holds
    matters: it is copied all the same. Slot 0 is padding (SGLang PR 26335).

    out_cache_loc: int64 [B·T], the verify batch's slots in node order; a request's first A are its targets.
    """
    batch, width = acceptance.accept_index.shape
    src_loc = scratch.zeros((batch, width), torch.int64)
    tgt_loc = scratch.zeros((batch, width), torch.int64)
    accepted = acceptance.accept_index >= 0
    node = acceptance.accept_index.clamp(min=0).view(-1)
    src = torch.where(accepted, out_cache_loc.index_select(0, node).view(batch, width), src_loc)
    front = out_cache_loc.view(batch, tree_size)[:, :width]
    if tree_size < width:  # entries past the tree are never accepted
        front = functional.pad(front, (0, width - tree_size))
    tgt = torch.where(accepted, front, tgt_loc)
    return MovePlan(src.view(-1), tgt.view(-1))


@dataclass(frozen=True)
class Compacted:
    """predict: int64 [B·T], accepted tokens first, then zeros. features: [B·T, F], rows matching predict.

    accept_lengths: int64 [B], A, the bonus included.
    """

    predict: Tensor
    features: Tensor
    accept_lengths: Tensor


def compact_accept_to_front(acceptance: Acceptance, features: Tensor, tree_size: int) -> Compacted:
    """Gather accepted rows of predict and hidden features to the front of each request's T rows.

    Rows past A repeat the root: they are embedded and attended by nothing that is kept.
    """
    batch, width = acceptance.accept_index.shape
    # negative padding cuts, so this serves trees on both sides of S + 1 nodes
    index = functional.pad(acceptance.accept_index, (0, tree_size - width), value=-1)
    root = torch.arange(0, batch * tree_size, tree_size, dtype=index.dtype, device=index.device).unsqueeze(1)
    accepted = index >= 0
    flat = torch.where(accepted, index, root).view(-1)
    maybe_detect_oob(flat, 0, batch * tree_size, "commit.compact.rows")
    predict = acceptance.predict.index_select(0, flat) * accepted.view(-1)
    accept_lengths = acceptance.num_correct_drafts.to(torch.int64) + 1
    return Compacted(predict.to(torch.int64), features.index_select(0, flat), accept_lengths)


def compact_chain(acceptance: Acceptance, features: Tensor) -> Compacted:
    """As :func:`compact_accept_to_front` for topk 1: a chain's accepted rows are the first ones already."""
    lengths = acceptance.num_correct_drafts.to(torch.int64) + 1
    return Compacted(acceptance.predict.to(torch.int64), features, lengths)

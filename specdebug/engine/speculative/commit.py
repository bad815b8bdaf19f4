"""After acceptance: bring what was accepted to the front, in the KV pool and in the draft extend's inputs.

A verify wrote target KV of node i to row cell L + i. Accepted nodes must end up at L, L + 1, ...; everything
else is over-reserved space that the next step overwrites.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
    src_loc[accepted] = out_cache_loc[acceptance.accept_index[accepted].to(torch.int64)]
    front = out_cache_loc.view(batch, tree_size)[:, :width]
    if front.shape[1] < width:
        accepted = accepted[:, : front.shape[1]]
    tgt_loc[:, : front.shape[1]][accepted] = front[accepted]
    return MovePlan(src_loc.view(-1), tgt_loc.view(-1))


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
    index = acceptance.accept_index.to(torch.int64)
    root = torch.arange(0, batch * tree_size, tree_size, device=index.device).unsqueeze(1)
    rows = root.expand(-1, tree_size).clone()
    kept = min(width, tree_size)
    rows[:, :kept] = torch.where(index[:, :kept] >= 0, index[:, :kept], root)
    flat = rows.view(-1)
    maybe_detect_oob(flat, 0, batch * tree_size, "commit.compact.rows")
    accept_lengths = acceptance.num_correct_drafts.to(torch.int64) + 1
    node = torch.arange(tree_size, device=index.device)
    predict = acceptance.predict[flat].to(torch.int64).view(batch, tree_size)
    predict = torch.where(node < accept_lengths.unsqueeze(1), predict, 0)
    return Compacted(predict.view(-1), features[flat], accept_lengths)


def compact_chain(acceptance: Acceptance, features: Tensor) -> Compacted:
    """As :func:`compact_accept_to_front` for topk 1: a chain's accepted rows are the first ones already."""
    lengths = acceptance.num_correct_drafts.to(torch.int64) + 1
    return Compacted(acceptance.predict.to(torch.int64), features, lengths)

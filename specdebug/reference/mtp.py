"""Multi-token prediction with a layer for each draft: next-n layers (DeepSeek-V3, section 2.2) beside one another.

Layer i at position p reads token p+1+i and the target's hidden state at p (or, chained, the layer before it at p) and
guesses token p+2+i; its keys and values at p depend on no later token. Behind L positions with target states and the
token at L, layer 0 drafts token L+1 from row L-1; layer i reads at rows L-i .. L-1 what layers 0 .. i-1 have drafted,
and drafts token L+1+i from row L-1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specdebug.reference.draft import DraftHead, draft_kv, draft_logits, draft_unroll


@dataclass(frozen=True)
class MTPHead:
    """The layers, in order, and how they are joined. ``chained``: a layer reads the output of the one before it."""

    layers: tuple[DraftHead, ...]
    chained: bool


@dataclass(frozen=True)
class MTPDrafts:
    """What follows a text: the drafted ``tokens`` int64 [N], and the logits [N, V] that each is the greatest of."""

    tokens: Tensor
    logits: Tensor


def mtp_unroll(head: MTPHead, ids: Tensor, hidden: Tensor) -> list[Tensor]:
    """Every layer over known text: int64 ids [..., n] and the target's states [..., n, H] at them. Entry i is
    [..., n-1-i, H]; its row p guesses token p+2+i."""
    n, outputs = ids.shape[-1], list[Tensor]()
    for index, layer in enumerate(head.layers):
        rows = max(0, n - 1 - index)
        states = outputs[-1] if head.chained and outputs else hidden
        outputs.append(draft_unroll(layer, ids[..., 1 + index :], states[..., :rows, :], 1)[0])
    return outputs


@torch.no_grad()
def mtp_kv(head: MTPHead, ids: Tensor, hidden: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The keys (rotated) and values that each layer writes where all that it reads is known: layer i at positions
    0 .. n-2-i of int64 ids [n], each [Hkv, n-1-i, D]."""
    written, states = [], hidden
    for index, (layer, output) in enumerate(zip(head.layers, mtp_unroll(head, ids, hidden), strict=True)):
        rows = max(0, len(ids) - 1 - index)
        written.append(draft_kv(layer, ids[1 + index :], states[:rows], torch.arange(rows, device=ids.device)))
        states = output if head.chained else hidden
    return written


@torch.no_grad()
def mtp_draft(head: MTPHead, ids: Tensor, hidden: Tensor) -> MTPDrafts:
    """Draft behind int64 ids [n], the last of which the target has not seen: ``hidden`` is [n-1, H]."""
    tokens, logits, states = ids[1:], list[Tensor](), hidden
    for layer in head.layers:
        output = draft_unroll(layer, tokens, states, 1)[0]
        logits.append(draft_logits(layer, output[-1]))
        tokens = torch.cat([tokens[1:], logits[-1].argmax(-1)[None]])
        states = output if head.chained else hidden
    drafted = torch.stack(logits)
    return MTPDrafts(drafted.argmax(-1), drafted)


@torch.no_grad()
def mtp_matches(head: MTPHead, ids: Tensor, hidden: Tensor) -> Tensor:
    """Bool [N, n-2] as ``draft.chain_matches`` has it: True at [k, p] if layer k at p - k guesses token p+2, given that
    what it reads was drafted right."""
    n, rows = len(ids), []
    for index, (layer, output) in enumerate(zip(head.layers, mtp_unroll(head, ids, hidden), strict=True)):
        right = draft_logits(layer, output).argmax(-1)[: n - 2 - index] == ids[2 + index :]
        rows.append(F.pad(right, (index, 0)))
    return torch.stack(rows)

"""How well a head drafts a given greedy text: accept lengths of chains (topk 1), without an engine."""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.reference.draft import DraftHead, draft_logits, draft_unroll, to_target_ids


@torch.no_grad()
def chain_matches(head: DraftHead, ids: Tensor, hidden: Tensor, num_steps: int) -> Tensor:
    """Bool [num_steps, n - 2]: [k, p] is whether step k of the chain that started at p - k guesses token p+2.

    ``ids`` is int64 [n]; ``hidden`` [n, H] or [n, 3H] is what the head reads of the target at each position.
    """
    outputs = draft_unroll(head, ids[1:], hidden[:-1], num_steps)
    rows = [to_target_ids(head, draft_logits(head, out).argmax(-1))[:-1] == ids[2:] for out in outputs]
    return torch.stack(rows)


def accept_lengths(matches: Tensor, prompt_length: int) -> list[int]:
    """Tokens each verify would yield, accepted drafts and the bonus, walking a greedy text past its prompt.

    The first new token comes from the prefill, as in the engine; a last verify that the text's end cuts off
    is left out.
    """
    num_steps, n = matches.shape
    lengths = []
    # The newest token, at `newest`, has no target state yet; the chain starts from the state before it.
    newest = prompt_length
    while newest - 1 + num_steps <= n:
        accepted = 0
        while accepted < num_steps and matches[accepted, newest - 1 + accepted]:
            accepted += 1
        lengths.append(accepted + 1)
        newest += accepted + 1
    return lengths

"""A head that drafts one position of its chains, with a cache that holds what each of them attends to."""

import torch
from torch import Tensor

from specdebug.reference.draft import DraftHead, draft_inputs, finish_layer
from specdebug.reference.layers import causal_attention, expand, project, rope_tables


def draft_step(
    head: DraftHead, next_ids: Tensor, hidden: Tensor, position: int, cache: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Draft one position of [B] chains: the output [B, 1, H], and the cache with that position's key and value.

    ``next_ids`` int64 [B, 1] is each chain's token after the position; ``hidden`` [B, 1, H] the reduced state at it;
    ``cache`` the keys and values [B, Hkv, m, D] that the chain attends to, as ``draft_kv`` gives them.
    """
    x, residual = draft_inputs(head, next_ids, hidden)
    prefix = f"{head.layer}self_attn."
    rope = rope_tables(head.config, torch.tensor([position], device=next_ids.device))
    q, k, v = project(head.weights, prefix, head.config, x, rope)
    cache = torch.cat([cache[0], k], dim=-2), torch.cat([cache[1], v], dim=-2)
    attended = causal_attention(q, *expand(head.weights, prefix, head.config, *cache))
    return finish_layer(head, attended, residual), cache

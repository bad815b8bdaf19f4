"""A frozen-KV assistant, dense: a draft that keeps no keys and values and reads the target's.

Behind L positions with target states and the token at L, pass 0 reads that token and the target's hidden state at L-1,
pass k the token that pass k-1 drafted and its output. Every pass asks from position L-1, and attends to the keys and
values that chosen target layers keep of positions 0 .. L-1. An output lies after the final norm, as the target's hidden
state does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specdebug.reference.config import ModelConfig
from specdebug.reference.decoder import finish
from specdebug.reference.layers import (
    Weights,
    apply_rope,
    causal_attention,
    repeat_kv,
    rms_norm,
    rope_tables,
    split_heads,
)
from specdebug.reference.target import DenseCache

TargetKV = Sequence[tuple[Tensor, Tensor]]
"""For each of an assistant's layers the keys (rotated) and values [..., Hkv, m, D] that it reads."""


@dataclass(frozen=True)
class AssistantHead:
    """An assistant's tensors, and the target's embedding and lm_head [V, H] unless it brings its own."""

    weights: Weights
    config: ModelConfig
    embed: Tensor
    lm_head: Tensor


def frozen_kv(head: AssistantHead, cache: DenseCache) -> TargetKV:
    """What the assistant's layers read of a target's cache."""
    stop = cache.length
    return [(cache.keys[i][..., :stop, :], cache.values[i][..., :stop, :]) for i in head.config.target_kv_layers]


def assistant_pass(
    head: AssistantHead, tokens: Tensor, hidden: Tensor, positions: Tensor, kv: TargetKV, visible: Tensor | None = None
) -> Tensor:
    """One pass of n rows that ask from int64 ``positions`` [n] and attend to the target's KV of m.

    ``tokens`` int64 [..., n] and ``hidden`` [..., n, H] are what each row reads; the output is [..., n, H]. What a row
    sees is ``visible``, bool [n, m]; without it, rows are the last n positions and see each up to its own.
    """
    config, weights = head.config, head.weights
    embedded = F.embedding(tokens, head.embed)
    pair = torch.cat([embedded, hidden.to(embedded.dtype)], dim=-1)
    x = F.linear(pair, weights["fc.weight"], weights.get("fc.bias"))
    rope = rope_tables(config, positions)
    for index, (k, v) in enumerate(kv):
        prefix = f"layers.{index}."
        normed = rms_norm(x, weights[f"{prefix}input_layernorm.weight"], config)
        q = split_heads(F.linear(normed, weights[f"{prefix}self_attn.q_proj.weight"]), config.num_heads)
        q, k, v = apply_rope(q, rope), repeat_kv(k, config), repeat_kv(v, config)
        if visible is None:
            attended = causal_attention(q, k, v)
        else:
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        x = finish(weights, prefix, config, attended, x)
    return rms_norm(x, weights["norm.weight"], config)


def assistant_unroll(head: AssistantHead, ids: Tensor, hidden: Tensor, kv: TargetKV, num_steps: int) -> list[Tensor]:
    """Make ``num_steps`` passes over known text: int64 ids [..., n], and the target's states [..., n, H] and KV there.

    Entry k is [..., n-1-k, H]; its row p is pass k of the chain behind p+1 positions, and guesses token p+2+k.
    """
    outputs: list[Tensor] = []
    for step in range(num_steps):
        rows = ids.shape[-1] - 1 - step
        states = (outputs[-1] if outputs else hidden)[..., :rows, :]
        seen = [(k[..., :rows, :], v[..., :rows, :]) for k, v in kv]
        positions = torch.arange(rows, device=ids.device)
        outputs.append(assistant_pass(head, ids[..., 1 + step :], states, positions, seen))
    return outputs


def assistant_logits(head: AssistantHead, output: Tensor) -> Tensor:
    """Logits [..., V] of a pass's output [..., H]."""
    return F.linear(output, head.lm_head)


@torch.no_grad()
def assistant_matches(head: AssistantHead, ids: Tensor, hidden: Tensor, kv: TargetKV, num_steps: int) -> Tensor:
    """Bool [num_steps, n-2] as ``draft.chain_matches`` has it: True at [k, p] if pass k of the chain behind p - k + 1
    positions guesses token p+2, given that what it reads was drafted right."""
    rows = []
    for step, output in enumerate(assistant_unroll(head, ids, hidden, kv, num_steps)):
        right = assistant_logits(head, output).argmax(-1)[: len(ids) - 2 - step] == ids[2 + step :]
        rows.append(F.pad(right, (step, 0)))
    return torch.stack(rows)

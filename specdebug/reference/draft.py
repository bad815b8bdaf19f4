"""EAGLE and EAGLE-3 draft heads and next-n layers, dense, in their published layouts.

Position p of a draft head pairs token p+1 with the target's hidden state at p, and guesses token p+2. Its key and value
depend on that pair and on p alone (one layer), so they can be checked.

The hidden state of a token that the target has not seen is the head's own previous output. Unrolled over known text,
pass k at position p reads pass k-1's output at p-1, and attends to

    pass 0 at 0..p-k   (true target states)      and      pass 1 at p-k+1, pass 2 at p-k+2, ..., pass k at p

which is the chain that started k tokens earlier, for every start at once. Training and measuring both use it.

A next-n layer (DeepSeek-V3, section 2.2: ``enorm``, ``hnorm``, ``eh_proj``, one decoder layer, ``shared_head``) is used
like that, too; what it hands on is its output after ``shared_head.norm``, which is where logits are made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specdebug.reference.config import ModelConfig
from specdebug.reference.decoder import expand, finish, project
from specdebug.reference.layers import Weights, causal_attention, rms_norm, rope_tables


@dataclass(frozen=True)
class DraftHead:
    """A head and the two target tensors [V, H] that it borrows; EAGLE-3 brings an lm_head of its own. ``index``: which
    of a checkpoint's next-n layers it is."""

    weights: Weights
    config: ModelConfig
    embed: Tensor
    lm_head: Tensor
    index: int = 0

    @property
    def is_eagle3(self) -> bool:
        return "midlayer.hidden_norm.weight" in self.weights

    @property
    def is_nextn(self) -> bool:
        return self.config.nextn_layers > 0

    @property
    def layer(self) -> str:
        """The prefix of the single decoder layer's names."""
        if self.is_nextn:
            return f"model.layers.{self.config.num_layers + self.index}."
        return "midlayer." if self.is_eagle3 else "layers.0."

    def weight(self, name: str) -> Tensor:
        """One of the decoder layer's tensors."""
        return self.weights[f"{self.layer}{name}.weight"]


def reduce_aux(head: DraftHead, hidden: Tensor) -> Tensor:
    """Reduce EAGLE-3's auxiliary target states [..., n, 3H] to [..., n, H]; an EAGLE head reads its state as it is."""
    if not head.is_eagle3:
        return hidden
    return F.linear(hidden, head.weights["fc.weight"], head.weights.get("fc.bias"))


def draft_inputs(head: DraftHead, next_ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The input of attention and the residual; ``hidden`` is [..., n, H], already reduced."""
    embedded = F.embedding(next_ids, head.embed)
    if head.is_eagle3:
        normed_token = rms_norm(embedded, head.weights["midlayer.input_layernorm.weight"], head.config)
        normed_hidden = rms_norm(hidden, head.weights["midlayer.hidden_norm.weight"], head.config)
        return torch.cat([normed_token, normed_hidden.to(embedded.dtype)], dim=-1), hidden
    if head.is_nextn:
        normed_token = rms_norm(embedded, head.weight("enorm"), head.config)
        normed_hidden = rms_norm(hidden.to(embedded.dtype), head.weight("hnorm"), head.config)
        x = F.linear(torch.cat([normed_token, normed_hidden], dim=-1), head.weight("eh_proj"))
        return rms_norm(x, head.weight("input_layernorm"), head.config), x
    pair = torch.cat([embedded, hidden.to(embedded.dtype)], dim=-1)
    x = F.linear(pair, head.weights["fc.weight"], head.weights.get("fc.bias"))
    return x, x


def draft_kv(head: DraftHead, next_ids: Tensor, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The rotated key and the value that the head writes, each [..., Hkv, n, D], or as ``config.stored_shape`` says.

    ``next_ids`` int64 [..., n] is token p+1 for each p in ``positions`` [n]; ``hidden`` is the target's state at p:
    [..., n, H] for EAGLE, the auxiliary states [..., n, 3H] for EAGLE-3.
    """
    x, _ = draft_inputs(head, next_ids, reduce_aux(head, hidden))
    _, k, v = project(head.weights, f"{head.layer}self_attn.", head.config, x, rope_tables(head.config, positions))
    return k, v


def project_heads(head: DraftHead, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of attention's input [..., n, H] at int64 ``positions`` [n], and what the rows give every query head to
    attend to: keys and values, all [..., Hq, n, D]."""
    prefix, rope = f"{head.layer}self_attn.", rope_tables(head.config, positions)
    q, k, v = project(head.weights, prefix, head.config, x, rope)
    return q, *expand(head.weights, prefix, head.config, k, v)


def finish_layer(head: DraftHead, attended: Tensor, residual: Tensor) -> Tensor:
    """Apply output projection and MLP with their residuals behind attention [..., Hq, n, D]: the state [..., n, H] for
    the next draft step."""
    x = finish(head.weights, head.layer, head.config, attended, residual)
    return rms_norm(x, head.weight("shared_head.norm"), head.config) if head.is_nextn else x


def draft_logits(head: DraftHead, output: Tensor) -> Tensor:
    """Logits [..., Vd] of a draft step's output [..., H], over draft-vocabulary ids for EAGLE-3."""
    if head.is_eagle3:
        normed = rms_norm(output, head.weights["norm.weight"], head.config)
        return F.linear(normed, head.weights["lm_head.weight"])
    return F.linear(output, head.lm_head)


def to_target_ids(head: DraftHead, draft_ids: Tensor) -> Tensor:
    """Turn draft ids to target ids: EAGLE-3's d2t is an offset, EAGLE's vocabulary is the target's."""
    return draft_ids + head.weights["d2t"][draft_ids] if head.is_eagle3 else draft_ids


def _chain_attention(q: Tensor, first: tuple[Tensor, Tensor], chain: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attend in pass k = len(chain) of the unrolled head, as this module's docstring says."""
    n, depth = q.shape[-2], len(chain)
    keys, values = first
    scores = (q @ keys.transpose(-1, -2)).float()
    visible = torch.ones(n, n, dtype=torch.bool, device=q.device).tril(-depth)
    scores = scores.masked_fill(~visible, float("-inf"))
    own = []
    for back, (k, _) in enumerate(reversed(chain)):
        own.append((q * _delayed(k, back)).float().sum(-1, keepdim=True))
    probs = (torch.cat([scores, *own], dim=-1) * q.shape[-1] ** -0.5).softmax(-1).to(values.dtype)
    out: Tensor = probs[..., :n] @ values
    for back, (_, v) in enumerate(reversed(chain)):
        out = out + probs[..., n + back : n + back + 1] * _delayed(v, back)
    return out


def _delayed(x: Tensor, back: int) -> Tensor:
    """Row p becomes what row p - back was; rows before the start are zero and belong to no real chain."""
    return F.pad(x, (0, 0, back, 0))[..., : x.shape[-2], :] if back else x


def draft_unroll(head: DraftHead, next_ids: Tensor, hidden: Tensor, num_steps: int) -> list[Tensor]:
    """Make ``num_steps`` passes over known text; pass k holds step k of every chain. Each output is [..., n, H].

    Arguments as for ``draft_kv``, with positions 0..n-1. Entry [k][..., p, :] guesses token p+2 in the chain whose true
    states end at p-k; rows p < k belong to no real chain.
    """
    positions = torch.arange(next_ids.shape[-1], device=next_ids.device)
    hidden = reduce_aux(head, hidden)
    written: list[tuple[Tensor, Tensor]] = []
    outputs: list[Tensor] = []
    for _ in range(num_steps):
        x, residual = draft_inputs(head, next_ids, hidden)
        q, k, v = project_heads(head, x, positions)
        written.append((k, v))
        first, *chain = written
        attended = _chain_attention(q, first, chain) if chain else causal_attention(q, k, v)
        outputs.append(finish_layer(head, attended, residual))
        hidden = _delayed(outputs[-1], 1)
    return outputs


@torch.no_grad()
def chain_matches(head: DraftHead, ids: Tensor, hidden: Tensor, num_steps: int) -> Tensor:
    """Bool [num_steps, n - 2], True at [k, p] if step k of the chain that started at p - k guesses token p+2.

    ``ids`` is int64 [n]; ``hidden`` [n, H] or [n, 3H] is what the head reads of the target at each position.
    """
    outputs = draft_unroll(head, ids[1:], hidden[:-1], num_steps)
    rows = [to_target_ids(head, draft_logits(head, out).argmax(-1))[:-1] == ids[2:] for out in outputs]
    return torch.stack(rows)


def accept_lengths(matches: Tensor, prompt_length: int) -> list[int]:
    """Tokens that each verify of a chain (topk 1) yields, the bonus included, along a greedy text past its prompt.

    The first new token comes from the prefill, as in the engine; a last verify that the text's end cuts off is left
    out.
    """
    num_steps, n = matches.shape
    lengths = []
    # the newest token, at `newest`, has no target state yet; the chain starts from the state before it
    newest = prompt_length
    while newest - 1 + num_steps <= n:
        accepted = 0
        while accepted < num_steps and matches[accepted, newest - 1 + accepted]:
            accepted += 1
        lengths.append(accepted + 1)
        newest += accepted + 1
    return lengths

"""Ways to draft, dense: EAGLE and EAGLE-3 heads, next-n layers, and frozen-KV assistants, in their published layouts.

Position p of a draft head pairs token p+1 with the target's hidden state at p, and guesses token p+2. Its key and value
depend on that pair and on p alone (one layer), so they can be checked.

The hidden state of a token that the target has not seen is the head's own previous output. Unrolled over known text,
pass k at position p reads pass k-1's output at p-1, and attends to

    pass 0 at 0..p-k   (true target states)      and      pass 1 at p-k+1, pass 2 at p-k+2, ..., pass k at p

which is the chain that started k tokens earlier, for every start at once. Training and measuring both use it.

A next-n layer (DeepSeek-V3, section 2.2: ``enorm``, ``hnorm``, ``eh_proj``, one decoder layer, ``shared_head``) is used
like that, too; what it hands on is its output after ``shared_head.norm``, which is where logits are made of. With
several of them (multi-token prediction) each drafts one token: layer i at position p reads token p+1+i and the target's
hidden state at p (or, chained, the layer before it at p) and guesses token p+2+i. Behind L positions with target states
and the token at L, layer 0 drafts token L+1 from row L-1; layer i reads at rows L-i .. L-1 what layers 0 .. i-1 have
drafted, and drafts token L+1+i from row L-1.

An assistant keeps no keys and values and reads the target's. Behind L positions with target states and the token at L,
pass 0 reads that token and the target's hidden state at L-1, pass k the token that pass k-1 drafted and its output.
Every pass asks from position L-1, and attends to the keys and values that chosen target layers keep of positions
0 .. L-1. An output lies after the final norm, as the target's hidden state does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specdebug.reference.config import ModelConfig
from specdebug.reference.layers import (
    Weights,
    apply_rope,
    causal_attention,
    expand,
    finish,
    project,
    repeat_kv,
    rms_norm,
    rope_tables,
    split_heads,
)
from specdebug.reference.target import DenseCache


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


def _later_matches(ids: Tensor, logits: Iterable[Tensor]) -> Tensor:
    """The same of logits [n-1-k, V] that step k gives from position 0 on, where p - k is known text."""
    n = len(ids)
    rights = [each.argmax(-1)[: n - 2 - k] == ids[2 + k :] for k, each in enumerate(logits)]
    return torch.stack([F.pad(right, (k, 0)) for k, right in enumerate(rights)])


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
    """Bool [N, n-2] as ``chain_matches`` has it: True at [k, p] if layer k at p - k guesses token p+2, given that what
    it reads was drafted right."""
    unrolled = zip(head.layers, mtp_unroll(head, ids, hidden), strict=True)
    return _later_matches(ids, (draft_logits(layer, output) for layer, output in unrolled))


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
    """Bool [num_steps, n-2] as ``chain_matches`` has it: True at [k, p] if pass k of the chain behind p - k + 1
    positions guesses token p+2, given that what it reads was drafted right."""
    return _later_matches(
        ids, (assistant_logits(head, output) for output in assistant_unroll(head, ids, hidden, kv, num_steps))
    )

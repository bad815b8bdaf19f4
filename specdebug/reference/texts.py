"""Drafts of each kind that have read a text: heads that go on from their own outputs, layers of multi-token prediction,
assistants that read the target's keys and values."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdebug.reference.draft import (
    AssistantHead,
    DraftHead,
    MTPHead,
    TargetKV,
    assistant_logits,
    assistant_pass,
    draft_inputs,
    draft_kv,
    draft_logits,
    finish_layer,
    project_heads,
    reduce_aux,
    to_target_ids,
)
from specdebug.reference.drafting import DraftedText


@dataclass(frozen=True)
class Rows:
    """Branches of a head: R rows, the length of each one's prefix, what it sees of the text, bool [R, m], and the keys
    and values that it has written itself, [Hq, R, depth, D]."""

    lengths: Tensor
    visible: Tensor
    keys: Tensor
    values: Tensor


class HeadText(DraftedText[Rows]):
    """A head that drafts from its own outputs. ``zeroed``: int64, positions whose keys and values were set to zero."""

    def __init__(self, head: DraftHead, ids: Tensor, features: Tensor, zeroed: Tensor | None = None) -> None:
        """``ids`` int64 [n + 1], the last without a target state; ``features`` [n, ...] is what the head reads."""
        self._head = head
        self._ids = ids
        self._hidden = reduce_aux(head, features)
        x, _ = draft_inputs(head, ids[1:], self._hidden)
        _, k, v = project_heads(head, x, torch.arange(len(features)))
        if zeroed is not None:
            k[:, zeroed] = v[:, zeroed] = 0.0
        self._kv = k, v
        vocab = torch.arange(head.embed.shape[0])
        self._draft_id = vocab  # of each of the target's ids; -1 for those that the head cannot draft
        if head.is_eagle3:
            known = torch.arange(len(head.weights["d2t"]))
            self._draft_id = torch.full_like(vocab, -1).index_copy_(0, to_target_ids(head, known), known)

    @property
    def vocab_size(self) -> int:
        return self._head.embed.shape[0]

    def outputs(self, lengths: Tensor) -> Tensor:
        """The head's output [n, H] at the last position of each prefix of int64 [n] ``lengths``."""
        last = lengths - 1
        return self.read(self.before(last), self._ids[lengths], self._hidden[last], last)[0]

    def stored(self, lengths: Tensor, outputs: Tensor) -> Tensor:
        return outputs

    def logits(self, outputs: Tensor, depth: int = 0) -> Tensor:
        return draft_logits(self._head, outputs).float()

    def begin(self, lengths: Tensor, width: int) -> Rows:
        return self.before(lengths.repeat_interleave(width))

    def step(self, state: Rows, tokens: Tensor, hidden: Tensor, depth: int) -> tuple[Tensor, Rows]:
        return self.read(state, tokens, hidden, state.lengths - 1 + depth)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        return to_target_ids(self._head, draft_ids)

    def draft_ids(self, target_ids: Tensor) -> Tensor:
        return self._draft_id[target_ids]

    def before(self, lengths: Tensor) -> Rows:
        """Rows that see the text before each of these positions, and have written nothing."""
        k, v = (side.new_empty(len(side), len(lengths), 0, side.shape[-1]) for side in self._kv)
        return Rows(lengths, torch.arange(self._kv[0].shape[-2]) < lengths[:, None], k, v)

    def read(self, rows: Rows, tokens: Tensor, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Rows]:
        """One pass over rows at int64 [R] ``positions`` of their own, each attending to what it sees of the text and,
        behind the text, to its branch: outputs [R, H], and the rows with what they have written there."""
        head = self._head
        x, residual = draft_inputs(head, tokens, hidden)
        q, k, v = project_heads(head, x, positions)
        text_keys, text_values = self._kv
        own_keys = torch.cat([rows.keys, k[:, :, None]], dim=2)
        own_values = torch.cat([rows.values, v[:, :, None]], dim=2)
        scores = (q @ text_keys.transpose(-1, -2)).masked_fill(~rows.visible, float("-inf"))
        own = (q[:, :, None] * own_keys).sum(-1)
        m = scores.shape[-1]
        probs = (torch.cat([scores, own], dim=-1) * q.shape[-1] ** -0.5).softmax(-1)
        attended = probs[..., :m] @ text_values + (probs[..., m:, None] * own_values).sum(2)
        return finish_layer(head, attended, residual), replace(rows, keys=own_keys, values=own_values)


@dataclass(frozen=True)
class Chains:
    """Chains of multi-token prediction: R rows, the length of each one's prefix, what was drafted behind it, int64
    [R, depth], and where layers are chained, the outputs of the last one at what it read of that and at the row before:
    [R, depth, H]."""

    lengths: Tensor
    drafted: Tensor
    outputs: Tensor


class MTPText(DraftedText[Chains]):
    """Layers of multi-token prediction. ``zeroed`` as of a head, in every layer."""

    def __init__(self, head: MTPHead, ids: Tensor, features: Tensor, zeroed: Tensor | None = None) -> None:
        """Arguments as of :class:`HeadText`."""
        self._head = head
        self._ids = ids
        self._hidden = features
        self._layers: list[HeadText] = []
        self._states: list[Tensor] = []
        """What each layer reads of the text beside tokens."""
        for index, layer in enumerate(head.layers):
            rows = max(0, len(features) - index)
            states = features[:rows]
            if head.chained and index:
                states = self._layers[-1].outputs(torch.arange(1, rows + 1))
            gone = None if zeroed is None else zeroed[zeroed < rows]
            self._states.append(states)
            self._layers.append(HeadText(layer, ids[index:], states, gone))

    @property
    def vocab_size(self) -> int:
        return self._layers[0].vocab_size

    def kv(self) -> list[tuple[Tensor, Tensor]]:
        """The keys and values that each layer writes, as ``mtp.mtp_kv`` has them; of chained layers, with what those
        before them read zeroed."""
        rows = [torch.arange(len(states)) for states in self._states]
        following = [self._ids[1 + index :] for index in range(len(self._layers))]
        return [draft_kv(*each) for each in zip(self._head.layers, following, self._states, rows, strict=True)]

    def outputs(self, lengths: Tensor) -> Tensor:
        return self._layers[0].outputs(lengths)

    def stored(self, lengths: Tensor, outputs: Tensor) -> Tensor:
        """The target's states at the last positions that layers will read again: [n, N - 1, H]."""
        again = len(self._layers) - 1
        positions = lengths[:, None] - again + torch.arange(again)
        return self._hidden[positions.clamp_min(0)].masked_fill((positions < 0)[..., None], float("nan"))

    def logits(self, outputs: Tensor, depth: int = 0) -> Tensor:
        return self._layers[depth].logits(outputs)

    def begin(self, lengths: Tensor, width: int) -> Chains:
        each = lengths.repeat_interleave(width)
        return Chains(each, each.new_empty(len(each), 0), self._hidden.new_empty(len(each), 0, self._hidden.shape[-1]))

    def step(self, state: Chains, tokens: Tensor, hidden: Tensor, depth: int) -> tuple[Tensor, Chains]:
        """Layer ``depth`` reads at the last ``depth`` rows of each prefix what was drafted; its output at the last."""
        drafted = torch.cat([state.drafted, tokens[:, None]], dim=1)
        read = state.outputs
        if self._head.chained:  # at the last row of the text before these, where the layer before read a known token
            first = state.lengths - depth
            known, there = hidden.new_zeros(len(tokens), hidden.shape[-1]), first >= 0
            known[there] = self._layers[depth - 1].outputs(first[there] + 1)
            read = torch.cat([known[:, None], read], dim=1)
        outputs = hidden.new_zeros(len(tokens), depth, hidden.shape[-1])
        for missing in range(depth):  # rows before a text's start; a prefix has one position at least
            some = (depth - state.lengths).clamp_min(0) == missing
            if some.any():
                outputs[some] = self._read(Chains(state.lengths[some], drafted[some], read[some]), depth, missing)
        return outputs[:, -1], Chains(state.lengths, drafted, outputs)

    def _read(self, chains: Chains, depth: int, missing: int) -> Tensor:
        """A layer's outputs [R, depth, H] at the last rows, of which the first ``missing`` do not exist."""
        layer, first = self._layers[depth], chains.lengths - depth
        rows = layer.before((first + missing).clamp_min(0))
        outputs = [chains.outputs.new_zeros(len(first), self._hidden.shape[-1])] * missing
        for row in range(missing, depth):
            beside = chains.outputs[:, row] if self._head.chained else self._hidden[first + row]
            output, rows = layer.read(rows, chains.drafted[:, row], beside, first + row)
            outputs.append(output)
        return torch.stack(outputs, dim=1)


class AssistantText(DraftedText[Tensor]):
    """A frozen-KV assistant; the state of its branches is the length of each one's prefix."""

    def __init__(self, head: AssistantHead, ids: Tensor, features: Tensor, kv: TargetKV) -> None:
        """``kv``: the keys and values [Hkv, n, D] of each layer that it reads; else as of :class:`HeadText`."""
        self._head = head
        self._ids = ids
        self._hidden = features
        self._kv = kv

    @property
    def vocab_size(self) -> int:
        return self._head.embed.shape[0]

    def outputs(self, lengths: Tensor) -> Tensor:
        """The output of the first pass, beside the target's state at the last position: [n, H]."""
        return self._pass(lengths, self._ids[lengths], self._hidden[lengths - 1])

    def stored(self, lengths: Tensor, outputs: Tensor) -> Tensor:
        """The target's state at the last position."""
        return self._hidden[lengths - 1]

    def logits(self, outputs: Tensor, depth: int = 0) -> Tensor:
        return assistant_logits(self._head, outputs).float()

    def begin(self, lengths: Tensor, width: int) -> Tensor:
        return lengths.repeat_interleave(width)

    def step(self, state: Tensor, tokens: Tensor, hidden: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        return self._pass(state, tokens, hidden), state

    def _pass(self, lengths: Tensor, tokens: Tensor, hidden: Tensor) -> Tensor:
        visible = torch.arange(len(self._hidden)) < lengths[:, None]
        return assistant_pass(self._head, tokens, hidden, lengths - 1, self._kv, visible)

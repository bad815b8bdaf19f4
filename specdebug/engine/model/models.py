"""The models that the engine runs: a target, whose layers are Llama's or another family's, and the drafts for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.engine.model.interface import DecoderConfig, Layer, LayerAttention, PositionTable, TargetOutput
from specdebug.engine.model.layers import DecoderLayer, Norm, QueryLayer, linear, linear_into

# A table this large is computed in a blink and costs a worker little; an 8B head's would be gigabytes.
MAX_TABLE_BYTES = 32 << 20


@dataclass(frozen=True)
class TargetModel:
    """Made by ``loader.load_target``; stateless, so one may serve any number of engines."""

    config: DecoderConfig
    rotary: PositionTable
    embedding: Tensor  # [V, H]
    layers: Sequence[tuple[Norm, Layer]]
    final_norm: Norm
    lm_head: Tensor  # [H, V]

    def forward(
        self, input_ids: Tensor, positions: Tensor, attn: LayerAttention, aux_layers: tuple[int, ...] = ()
    ) -> TargetOutput:
        """Ids [n] i64, positions [n] i64 -> final-normed hidden [n, H] and the *inputs* of ``aux_layers``, ascending.

        The number of layers among them names the last layer's output before the norm. Raises IndexError if an id is
        outside the vocabulary, or a position outside the RoPE table; on a GPU a bad id fails an assertion of the
        device, and positions are not checked.
        """
        phases = self.rotary.at(positions)
        x = torch.embedding(self.embedding, input_ids)
        captured: list[Tensor] = []
        for index, (norm, layer) in enumerate(self.layers):
            if index in aux_layers:
                captured.append(x.clone())  # the layer writes where its residual lay
            x = layer.forward(norm(x), x, phases, attn)
        if len(self.layers) in aux_layers:
            captured.append(x)
        return TargetOutput(self.final_norm.with_gain(x), torch.cat(captured, 1) if captured else None)

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, H] as ``forward`` returned it -> [m, V] in the model's dtype."""
        return linear(hidden, self.lm_head)


class TokenShare:
    """The token's share of a linear layer that reads (token embedding, hidden) side by side.

    All heads begin with such a layer. The share depends on the id alone, so for a small vocabulary it is a table: half
    of the layer's weights, and a concatenation, less to read per step.
    """

    def __init__(self, embedding: Tensor, norm: Norm | None, weight: Tensor, bias: Tensor | None) -> None:
        """Take embedding [V, E], normed first by ``norm`` if given, and weight [E, out], the rows that read it."""
        self._embedding = embedding
        self._norm = norm
        self._weight = weight
        self._bias = bias
        size = embedding.shape[0] * weight.shape[1] * weight.element_size()
        self._table = self._of(embedding) if size <= MAX_TABLE_BYTES else None
        self.tabulated = self._table is not None

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Ids [n] i64 -> [n, out], bias included. Raises IndexError if an id is outside the vocabulary."""
        if self._table is not None:
            return self._table.index_select(0, input_ids)
        return self._of(torch.embedding(self._embedding, input_ids))

    def _of(self, rows: Tensor) -> Tensor:
        return linear(rows if self._norm is None else self._norm(rows), self._weight, self._bias)


class NormedPair:
    """The linear layer that next-n layers begin with: it reads a token's embedding and a hidden state, each normed.

    Where the token's share is no table, a GPU norms both in one launch and reads the weight in one product.
    """

    def __init__(self, embedding: Tensor, token_norm: Norm, hidden_norm: Norm, weight: Tensor) -> None:
        """Take embedding [V, H] and weight [2*H, out], of which the first half reads the token; gains are folded into
        it if they must be."""
        size = embedding.shape[1]
        self._embedding = embedding
        self._norms = token_norm, hidden_norm
        self._weight = weight
        self._token = TokenShare(embedding, token_norm, token_norm.fold_into(weight[:size]), None)
        self._hidden_weight = hidden_norm.fold_into(weight[size:])
        self._at_once = weight.is_cuda and not self._token.tabulated

    def __call__(self, input_ids: Tensor, hidden: Tensor) -> Tensor:
        """Ids [n] i64 and hidden [n, H] -> [n, out]. Raises IndexError if an id is outside the vocabulary."""
        token_norm, hidden_norm = self._norms
        if self._at_once:
            from specdebug.engine.kernels.triton.layers import rms_norm_pair

            token = torch.embedding(self._embedding, input_ids)
            pair = rms_norm_pair(token, token_norm.gain, token_norm.eps, hidden, hidden_norm.gain, hidden_norm.eps)
            return linear(pair, self._weight)
        return linear_into(self._token(input_ids), hidden_norm(hidden), self._hidden_weight)


@dataclass(eq=False, kw_only=True)
class HeadSizes:
    """Sizes of a draft model; ``interface.DraftSizes`` says what each one means."""

    config: DecoderConfig
    num_layers: int
    vocab_size: int
    target_feature_size: int
    aux_layers: tuple[int, ...] = ()
    lookahead: int = 1

    def __post_init__(self) -> None:
        self.num_heads = self.config.num_heads
        self.num_kv_heads = self.config.num_kv_heads
        self.head_dim = self.config.head_dim
        self.value_dim = self.config.value_dim
        self.rotary_dim = self.config.rotary_dim
        self.softmax_scale = self.config.softmax_scale
        self.kv_layout = self.config.kv_layout
        self.hidden_size = self.config.hidden_size


@dataclass(eq=False, kw_only=True)
class _Head(HeadSizes):
    """A ``DraftModel`` of the target's vocabulary, whose feature is the target's final hidden. lm_head: [H, V].

    ``forward`` raises IndexError as ``TargetModel.forward`` does.
    """

    rotary: PositionTable
    lm_head: Tensor

    def project(self, target_features: Tensor) -> Tensor:
        return target_features

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.lm_head)

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        return draft_ids


@dataclass(eq=False, kw_only=True)
class EagleDraft(_Head):
    """An EAGLE head. token: the embedding's share of fc, bias included. fc: [H, H], its other half."""

    token: TokenShare
    fc: Tensor
    layers: Sequence[tuple[Norm | None, DecoderLayer]]

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Target-vocabulary ids [n] i64, positions [n] i64, hidden [n, H] -> next hidden [n, H]."""
        phases = self.rotary.at(positions)
        x = linear_into(self.token(input_ids), hidden, self.fc)
        for norm, layer in self.layers:
            x = layer.forward(x if norm is None else norm(x), x, phases, attn)
        return x


@dataclass(eq=False, kw_only=True)
class AssistantDraft(_Head):
    """An assistant: a small decoder that has queries only, and reads the keys and values that the target has stored.

    It fuses token and hidden as an EAGLE head does. The hidden state that it gives back lies after its final norm,
    where the target's lies, so that either can be read next. No layer writes anything: what one pass knows of the
    tokens before it is the target's KV and the hidden state.
    """

    token: TokenShare
    fc: Tensor
    layers: Sequence[QueryLayer]
    final_norm: Norm

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Ids [n] i64, positions [n] i64 of the queries, hidden [n, H] -> next hidden [n, H], after the final norm.
        ``attn`` is over the target's pool; of it only ``attend`` is called."""
        phases = self.rotary.at(positions)
        x = linear_into(self.token(input_ids), hidden, self.fc)
        for layer in self.layers:
            x = layer.forward(x, phases, attn)
        return self.final_norm.with_gain(x)


@dataclass(eq=False, kw_only=True)
class NextnDraft(_Head):
    """The next-n layer of DeepSeek-V3 (arXiv 2412.19437, 2.2) as a head: one decoder layer over token and hidden.

    It is trained to continue the target's final hidden by one token; drafting feeds its own output, normed, back to it,
    as SGLang's next-n model does. fused: of token and hidden. layer, and its norm before attention. final_norm: before
    ``lm_head``.
    """

    fused: NormedPair
    layer_norm: Norm
    layer: Layer
    final_norm: Norm

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Target-vocabulary ids [n] i64, positions [n] i64, hidden [n, H] -> next hidden [n, H], normed."""
        x = self.fused(input_ids, hidden)
        x = self.layer.forward(self.layer_norm(x), x, self.rotary.at(positions), attn)
        return self.final_norm.with_gain(x)


@dataclass(eq=False, kw_only=True)
class Eagle3Draft(_Head):
    """An EAGLE-3 head: hidden states of several target layers, one decoder layer, a vocabulary of its own.

    The layer reads the normed embedding and the normed hidden side by side, so its q, k and v projections are twice as
    wide; its residual is the hidden alone. fc: [F, Hd]. token: the embedding's share of the layer's q, k and v, their
    bias included; the layer's own qkv [Hd, q+k+v] is the hidden's. lm_head: [Hd, Vd]. target_ids: [Vd] i64, of each
    draft id.
    """

    fc: Tensor
    fc_bias: Tensor | None
    token: TokenShare
    hidden_norm: Norm
    residual_is_normed: bool
    layer: DecoderLayer
    final_norm: Norm
    target_ids: Tensor | None

    def project(self, target_features: Tensor) -> Tensor:
        """Auxiliary hiddens [n, F] -> [n, Hd]; for the target's features only, never for a draft hidden."""
        return linear(target_features, self.fc, self.fc_bias)

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Target ids [n] i64, positions [n] i64, hidden [n, Hd] -> next hidden [n, Hd], before the norm."""
        phases = self.rotary.at(positions)
        # a copy of what is the caller's, for the layer writes where its residual lay
        residual = self.hidden_norm.with_gain(hidden) if self.residual_is_normed else hidden.clone()
        return self.layer.forward(self.hidden_norm(hidden), residual, phases, attn, self.token(input_ids))

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, Hd] -> [m, Vd], in the draft vocabulary."""
        return linear(self.final_norm(hidden), self.lm_head)

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Any shape of draft ids i64 -> target ids. Raises IndexError if an id is outside the draft vocabulary."""
        return draft_ids if self.target_ids is None else torch.take(self.target_ids, draft_ids)


@dataclass(frozen=True, eq=False)
class NextNLayer:
    """A layer of ``MTPDraft``. fused: of token and hidden. lm_head: [H, V]."""

    fused: NormedPair
    input_norm: Norm
    layer: DecoderLayer
    head_norm: Norm
    lm_head: Tensor


@dataclass(eq=False, kw_only=True)
class MTPDraft(HeadSizes):
    """Next-n prediction layers (DeepSeek-V3, arXiv 2412.19437, 2.2): a model of N layers that draft one token each.

    Layer i at position p fuses the embedding of token p+1+i with the target's final hidden at p, and guesses token
    p+2+i. It has keys and values of its own, at p as well. chain_hidden_states: a layer after the first reads the
    hidden of the one before it instead of the target's.
    """

    rotary: PositionTable
    layers: Sequence[NextNLayer]
    chain_hidden_states: bool

    def forward(
        self,
        index: int,
        input_ids: Tensor,
        positions: Tensor,
        hidden: Tensor,
        attn: LayerAttention,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Run layer ``index``: ids [n] i64, of the token ``index`` + 1 after each position; positions [n] i64;
        hidden [n, H] -> hidden [n, H], normed as its head reads it, or [m, H] of the rows ``wanted`` (int64 [m]).
        Raises IndexError as ``TargetModel.forward`` does."""
        one = self.layers[index]
        x = one.fused(input_ids, hidden)
        x = one.layer.forward(one.input_norm(x), x, self.rotary.at(positions), attn, wanted=wanted)
        return one.head_norm.with_gain(x)

    def logits(self, index: int, hidden: Tensor) -> Tensor:
        """[m, H] as layer ``index`` returned it -> [m, V] in the model's dtype."""
        return linear(hidden, self.layers[index].lm_head)

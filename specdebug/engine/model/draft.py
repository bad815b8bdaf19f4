"""The geometry that draft models share, and a token's share of their first layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.engine.model.interface import DecoderConfig
from specdebug.engine.model.layers import Norm
from specdebug.engine.model.linear import linear, linear_into

# A table this large is computed in a blink and costs a worker little; an 8B head's would be gigabytes.
MAX_TABLE_BYTES = 32 << 20


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

    @property
    def tabulated(self) -> bool:
        """True if a look-up gives it."""
        return self._table is not None

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Ids [n] i64 -> [n, out], bias included. Raises IndexError if an id is outside the vocabulary."""
        if self._table is not None:
            return self._table.index_select(0, input_ids)
        return self._of(torch.embedding(self._embedding, input_ids))

    def _of(self, rows: Tensor) -> Tensor:
        normed = rows if self._norm is None else self._norm(rows)
        return linear(normed, self._weight, self._bias)


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

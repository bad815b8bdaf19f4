"""EAGLE and EAGLE-3 heads have their geometry in common, and what they compute of a token before its context."""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.layers import Norm
from specdebug.engine.model.linear import linear

# A table this large is computed in a blink and costs a worker little; an 8B head's would be gigabytes.
MAX_TABLE_BYTES = 32 << 20


class HeadSizes:
    """Sizes of a head; see ``interface.DraftModel`` for what each one means."""

    def __init__(
        self,
        config: LlamaConfig,
        *,
        num_layers: int,
        vocab_size: int,
        feature_size: int,
        aux_layers: tuple[int, ...],
    ) -> None:
        self.config = config
        self.num_layers = num_layers
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.kv_layout = config.kv_layout
        self.hidden_size = config.hidden_size
        self.vocab_size = vocab_size
        self.target_feature_size = feature_size
        self.aux_layers = aux_layers


class TokenShare:
    """The token's share of a linear layer that reads (token embedding, hidden) side by side.

    Both heads begin with such a layer. The share is a function of the id alone, so for a small vocabulary it is a
    table: half of the layer's weights, and a concatenation, less to read per step.
    """

    def __init__(self, embedding: Tensor, norm: Norm | None, weight: Tensor, bias: Tensor | None) -> None:
        """Embedding [V, E], normed first where the layer wants it; weight [E, out], the rows that read it."""
        self._embedding = embedding
        self._norm = norm
        self._weight = weight
        self._bias = bias
        size = embedding.shape[0] * weight.shape[1] * weight.element_size()
        self._table = self._of(embedding) if size <= MAX_TABLE_BYTES else None

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Ids [n] i64 -> [n, out], bias included.

        Raises:
            IndexError: an id is outside the vocabulary.
        """
        if self._table is not None:
            return self._table.index_select(0, input_ids)
        return self._of(torch.embedding(self._embedding, input_ids))

    def _of(self, rows: Tensor) -> Tensor:
        normed = rows if self._norm is None else self._norm(rows)
        return linear(normed, self._weight, self._bias)

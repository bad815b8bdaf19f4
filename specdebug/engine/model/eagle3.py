"""The EAGLE-3 draft head: hidden states of several target layers, one decoder layer, a vocabulary of its own.

The layer reads the normed embedding and the normed hidden side by side, so its q, k and v projections are
twice as wide; its residual is the hidden alone. ``d2t`` holds *offsets*: draft id i stands for target id i +
d2t[i].
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.draft import HeadSizes, TokenShare
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.layers import DecoderLayer, Norm
from specdebug.engine.model.linear import linear
from specdebug.engine.model.rope import Rotary


class Eagle3Draft(HeadSizes):
    """Made by ``loader.load_draft``; a ``DraftModel`` whose features are inputs of the target's ``aux_layers``."""

    def __init__(
        self,
        config: LlamaConfig,
        *,
        aux_layers: tuple[int, ...],
        rotary: Rotary,
        fc: Tensor,
        fc_bias: Tensor | None,
        token: TokenShare,
        hidden_norm: Norm,
        residual_is_normed: bool,
        layer: DecoderLayer,
        final_norm: Norm,
        lm_head: Tensor,
        d2t: Tensor | None,
    ) -> None:
        """fc [F, Hd]; ``token`` is the embedding's share of the layer's q, k and v, their bias included, and the
        layer's qkv [Hd, q+k+v] the hidden's; lm_head [Hd, Vd]; d2t [Vd] i64.
        """
        super().__init__(
            config, num_layers=1, vocab_size=lm_head.shape[1], feature_size=fc.shape[0], aux_layers=aux_layers
        )
        self._rotary = rotary
        self._fc = fc
        self._fc_bias = fc_bias
        self._token = token
        self._hidden_norm = hidden_norm
        self._residual_is_normed = residual_is_normed
        self._layer = layer
        self._final_norm = final_norm
        self._lm_head = lm_head
        self._target_id = None if d2t is None else d2t + torch.arange(d2t.shape[0], device=d2t.device)

    def project(self, target_features: Tensor) -> Tensor:
        """Auxiliary hiddens [n, F] -> [n, Hd]; for the target's features only, never for a draft hidden."""
        return linear(target_features, self._fc, self._fc_bias)

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Target ids [n] i64, positions [n] i64, hidden [n, Hd] -> next hidden [n, Hd], before the norm.

        Raises:
            IndexError: as ``TargetModel.forward``.
        """
        phases = self._rotary.at(positions)
        # a copy of what is the caller's, for the layer writes where its residual lay
        residual = self._hidden_norm.with_gain(hidden) if self._residual_is_normed else hidden.clone()
        return self._layer.forward(self._hidden_norm(hidden), residual, phases, attn, self._token(input_ids))

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, Hd] -> [m, Vd], in the draft vocabulary."""
        return linear(self._final_norm(hidden), self._lm_head)

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Any shape of draft ids i64 -> target ids.

        Raises:
            IndexError: an id is outside the draft vocabulary.
        """
        if self._target_id is None:
            return draft_ids
        return torch.take(self._target_id, draft_ids)

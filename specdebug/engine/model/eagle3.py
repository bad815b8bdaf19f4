"""The EAGLE-3 draft head: hidden states of several target layers, one decoder layer, a vocabulary of its own.

The layer reads the normed embedding and the normed hidden side by side, so its q, k and v projections are twice as
wide; its residual is the hidden alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.engine.model.draft import HeadSizes, TokenShare
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.layers import DecoderLayer, Norm
from specdebug.engine.model.linear import linear
from specdebug.engine.model.rope import Rotary


@dataclass(eq=False, kw_only=True)
class Eagle3Draft(HeadSizes):
    """Made by ``loader.load_draft``; a ``DraftModel`` whose features are inputs of the target's ``aux_layers``.

    fc: [F, Hd]. token: the embedding's share of the layer's q, k and v, their bias included; the layer's own qkv
    [Hd, q+k+v] is the hidden's. lm_head: [Hd, Vd]. target_ids: [Vd] i64, of each draft id.
    """

    rotary: Rotary
    fc: Tensor
    fc_bias: Tensor | None
    token: TokenShare
    hidden_norm: Norm
    residual_is_normed: bool
    layer: DecoderLayer
    final_norm: Norm
    lm_head: Tensor
    target_ids: Tensor | None

    def project(self, target_features: Tensor) -> Tensor:
        """Auxiliary hiddens [n, F] -> [n, Hd]; for the target's features only, never for a draft hidden."""
        return linear(target_features, self.fc, self.fc_bias)

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Target ids [n] i64, positions [n] i64, hidden [n, Hd] -> next hidden [n, Hd], before the norm.
        Raises IndexError as ``TargetModel.forward`` does."""
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

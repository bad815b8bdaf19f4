"""The EAGLE draft head: token embedding and target hidden fused by one linear, then decoder layers.

The target's own ``lm_head`` reads its hidden as it is: there is no final norm. The first layer of published heads has
no input norm either; one that is in the file is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specdebug.engine.model.draft import HeadSizes, TokenShare
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.layers import DecoderLayer, Norm
from specdebug.engine.model.linear import linear, linear_into
from specdebug.engine.model.rope import Rotary


@dataclass(eq=False, kw_only=True)
class EagleDraft(HeadSizes):
    """Made by ``loader.load_draft``; a ``DraftModel`` whose feature is the target's final hidden.

    token: the embedding's share of fc, bias included. fc: [H, H], its other half. lm_head: [H, V].
    """

    rotary: Rotary
    token: TokenShare
    fc: Tensor
    layers: Sequence[tuple[Norm | None, DecoderLayer]]
    lm_head: Tensor

    def project(self, target_features: Tensor) -> Tensor:
        return target_features

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Target-vocabulary ids [n] i64, positions [n] i64, hidden [n, H] -> next hidden [n, H].
        Raises IndexError as ``TargetModel.forward`` does."""
        phases = self.rotary.at(positions)
        x = linear_into(self.token(input_ids), hidden, self.fc)
        for norm, layer in self.layers:
            x = layer.forward(x if norm is None else norm(x), x, phases, attn)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.lm_head)

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        return draft_ids

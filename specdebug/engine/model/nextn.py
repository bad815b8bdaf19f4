"""The next-n layer of DeepSeek-V3 (arXiv 2412.19437, 2.2) as a draft head: one decoder layer over token and hidden.

It is trained to continue the target's final hidden by one token; drafting feeds its own output, normed, back to it, as
SGLang's next-n model does.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specdebug.engine.model.draft import HeadSizes, NormedPair
from specdebug.engine.model.interface import Layer, LayerAttention, PositionTable
from specdebug.engine.model.layers import Norm
from specdebug.engine.model.linear import linear


@dataclass(eq=False, kw_only=True)
class NextnDraft(HeadSizes):
    """Made by ``loader.load_draft``; a ``DraftModel`` whose feature is the target's final hidden.

    fused: of token and hidden. layer, and its norm before attention. final_norm: before ``lm_head`` [H, V].
    """

    rotary: PositionTable
    fused: NormedPair
    layer_norm: Norm
    layer: Layer
    final_norm: Norm
    lm_head: Tensor

    def project(self, target_features: Tensor) -> Tensor:
        return target_features

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Target-vocabulary ids [n] i64, positions [n] i64, hidden [n, H] -> next hidden [n, H], normed.
        Raises IndexError as ``TargetModel.forward`` does."""
        x = self.fused(input_ids, hidden)
        x = self.layer.forward(self.layer_norm(x), x, self.rotary.at(positions), attn)
        return self.final_norm.with_gain(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.lm_head)

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        return draft_ids

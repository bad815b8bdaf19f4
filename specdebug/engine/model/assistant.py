"""An assistant: a small decoder that has queries only, and reads the keys and values that the target has stored.

It fuses a token's embedding with a hidden state as an EAGLE head does. The hidden state that it gives back lies after
its final norm, where the target's lies, so that either can be read next. No layer writes anything: what one pass knows
of the tokens before it is the target's KV and the hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specdebug.engine.model.draft import HeadSizes, TokenShare
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.layers import Norm, QueryLayer
from specdebug.engine.model.linear import linear, linear_into
from specdebug.engine.model.rope import Rotary


@dataclass(eq=False, kw_only=True)
class AssistantDraft(HeadSizes):
    """Made by ``assistant_loader.load_assistant``; a ``DraftModel`` whose feature is the target's final hidden.

    token: the embedding's share of fc, bias included. fc: [H, H], its other half. lm_head: [H, V].
    """

    rotary: Rotary
    token: TokenShare
    fc: Tensor
    layers: Sequence[QueryLayer]
    final_norm: Norm
    lm_head: Tensor

    def project(self, target_features: Tensor) -> Tensor:
        return target_features

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Ids [n] i64, positions [n] i64 of the queries, hidden [n, H] -> next hidden [n, H], after the final norm.

        ``attn`` is over the target's pool; of it only ``attend`` is called. Raises IndexError as
        ``TargetModel.forward`` does.
        """
        phases = self.rotary.at(positions)
        x = linear_into(self.token(input_ids), hidden, self.fc)
        for layer in self.layers:
            x = layer.forward(x, phases, attn)
        return self.final_norm.with_gain(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.lm_head)

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        return draft_ids

"""The EAGLE draft head: token embedding and target hidden fused by one linear, then decoder layers.

Its hidden plays the part of the target's final-normed hidden, so the target's own ``lm_head`` reads it as it
is: no final norm. The first layer of published heads has no input norm either; one that is in the file is
used.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.draft import HeadSizes, TokenShare
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.layers import DecoderLayer, Norm
from specdebug.engine.model.linear import linear, linear_into
from specdebug.engine.model.rope import Rotary


class EagleDraft(HeadSizes):
    """Made by ``loader.load_draft``; a ``DraftModel`` whose feature is the target's final hidden."""

    def __init__(
        self,
        config: LlamaConfig,
        *,
        rotary: Rotary,
        token: TokenShare,
        fc: Tensor,
        layers: Sequence[tuple[Norm | None, DecoderLayer]],
        lm_head: Tensor,
    ) -> None:
        """``token`` is the embedding's share of fc, bias included; fc [H, H] its other half; lm_head [H, V]."""
        super().__init__(
            config,
            num_layers=len(layers),
            vocab_size=lm_head.shape[1],
            feature_size=config.hidden_size,
            aux_layers=(),
        )
        self._rotary = rotary
        self._token = token
        self.fc = fc
        self.layers = layers
        self.lm_head = lm_head

    def project(self, target_features: Tensor) -> Tensor:
        """The target's hidden as it is."""
        return target_features

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Target-vocabulary ids [n] i64, positions [n] i64, hidden [n, H] -> next hidden [n, H].

        Raises:
            IndexError: as ``TargetModel.forward``.
        """
        phases = self._rotary.at(positions)
        x = linear_into(self._token(input_ids), hidden, self.fc)
        for norm, layer in self.layers:
            x = layer.forward(x if norm is None else norm(x), x, phases, attn)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, H] -> [m, V] by the target's head."""
        return linear(hidden, self.lm_head)

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """The two vocabularies are one."""
        return draft_ids

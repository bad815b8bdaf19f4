"""The target model: a decoder over a flat batch of tokens. Its layers are Llama's, or another family's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.engine.model.interface import DecoderConfig, Layer, LayerAttention, PositionTable, TargetOutput
from specdebug.engine.model.layers import Norm
from specdebug.engine.model.linear import linear


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

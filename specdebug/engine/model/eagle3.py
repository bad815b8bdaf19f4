"""The EAGLE-3 draft head: hidden states of several target layers, one decoder layer, a vocabulary of its own.

The layer reads the normed embedding and the normed hidden side by side, so its q, k and v projections are
twice as wide; its residual is the hidden alone. ``d2t`` holds *offsets*: draft id i stands for target id i +
d2t[i].
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.draft import DraftHead
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.layers import DecoderLayer, Norm
from specdebug.engine.model.rope import Rotary


class Eagle3Draft(DraftHead):
    """Made by ``loader.load_draft``; a ``DraftModel`` whose features are inputs of ``aux_layers`` of the
    target.
    """

    def __init__(
        self,
        config: LlamaConfig,
        *,
        aux_layers: tuple[int, ...],
        rotary: Rotary,
        embedding: Tensor,
        fc: Tensor,
        fc_bias: Tensor | None,
        input_norms: Norm,
        residual_is_normed: bool,
        layer: DecoderLayer,
        final_norm: Norm,
        lm_head: Tensor,
        d2t: Tensor | None,
    ) -> None:
        """Embedding [V, Hd]; fc [F, Hd]; input_norms of [2, Hd] (embedding, hidden); lm_head [Hd, Vd]; d2t
        [Vd] i64.
        """
        super().__init__(
            config, num_layers=1, vocab_size=lm_head.shape[1], feature_size=fc.shape[0], aux_layers=aux_layers
        )
        self._rotary = rotary
        self._embedding = embedding
        self._fc = fc
        self._fc_bias = fc_bias
        self._input_norms = input_norms
        self._residual_is_normed = residual_is_normed
        self._layer = layer
        self._final_norm = final_norm
        self._lm_head = lm_head
        self._target_id = None if d2t is None else d2t + torch.arange(d2t.shape[0], device=d2t.device)

    def project(self, target_features: Tensor) -> Tensor:
        """Auxiliary hiddens [n, F] -> [n, Hd]; applied to the target's features only, never to a draft
        hidden.
        """
        if self._fc_bias is None:
            return torch.mm(target_features, self._fc)
        return torch.addmm(self._fc_bias, target_features, self._fc)

    def forward(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, attn: LayerAttention) -> Tensor:
        """Target-vocabulary ids [n] i64, positions [n] i64, hidden [n, Hd] -> next hidden [n, Hd], before the
        norm.

        Raises:
            IndexError: an id is outside the vocabulary, or a position outside the RoPE table.
        """
        phases = self._rotary.at(positions)
        pair = torch.stack((torch.embedding(self._embedding, input_ids), hidden), 1)
        normed = self._input_norms(pair)
        residual = self._input_norms.with_gain(pair)[:, 1] if self._residual_is_normed else hidden
        return self._layer.forward(normed.flatten(1), residual, phases, attn)

    def logits(self, hidden: Tensor) -> Tensor:
        """[m, Hd] -> [m, Vd], in the draft vocabulary."""
        return torch.mm(self._final_norm(hidden), self._lm_head)

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Any shape of draft ids i64 -> target ids.

        Raises:
            IndexError: an id is outside the draft vocabulary.
        """
        if self._target_id is None:
            return draft_ids
        return torch.take(self._target_id, draft_ids)

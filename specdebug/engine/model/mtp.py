"""Next-n prediction layers (DeepSeek-V3, arXiv:2412.19437, section 2.2): a model of N layers that draft one token each.

Layer i at position p fuses the embedding of token p+1+i with the target's hidden state at p, and guesses token p+2+i.
It has keys and values of its own, at p as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specdebug.engine.model.draft import HeadSizes, NormedPair
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.layers import DecoderLayer, Norm
from specdebug.engine.model.linear import linear
from specdebug.engine.model.rope import Rotary


@dataclass(frozen=True, eq=False)
class NextNLayer:
    """One of them. fused: of token and hidden. lm_head: [H, V]."""

    fused: NormedPair
    input_norm: Norm
    layer: DecoderLayer
    head_norm: Norm
    lm_head: Tensor


@dataclass(eq=False, kw_only=True)
class MTPDraft(HeadSizes):
    """Made by ``mtp_loader.load_mtp``; a ``DraftSizes`` whose feature is the target's final hidden.

    chain_hidden_states: a layer after the first reads the hidden of the one before it instead of the target's.
    """

    rotary: Rotary
    layers: Sequence[NextNLayer]
    chain_hidden_states: bool

    def forward(
        self,
        index: int,
        input_ids: Tensor,
        positions: Tensor,
        hidden: Tensor,
        attn: LayerAttention,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Run layer ``index``: ids [n] i64, of the token ``index`` + 1 after each position; positions [n] i64;
        hidden [n, H] -> hidden [n, H], normed as its head reads it, or [m, H] of the rows ``wanted`` (int64 [m]).
        Raises IndexError as ``TargetModel.forward`` does.
        """
        one = self.layers[index]
        x = one.fused(input_ids, hidden)
        x = one.layer.forward(one.input_norm(x), x, self.rotary.at(positions), attn, wanted=wanted)
        return one.head_norm.with_gain(x)

    def logits(self, index: int, hidden: Tensor) -> Tensor:
        """[m, H] as layer ``index`` returned it -> [m, V] in the model's dtype."""
        return linear(hidden, self.layers[index].lm_head)

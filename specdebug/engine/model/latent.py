"""A decoder layer with multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1), its up-projections absorbed.

Each token stores one row for all heads: its normed latent c and a rotated key part. Keys and values of head h would be
c W_UK[h] and c W_UV[h]. As q . (c W_UK[h]) = (q W_UK[h]^T) . c, queries are brought into the latent's space instead,
all heads attend the rows as they are, and what comes out is brought back by W_UV. So every forward, prefill included,
reads the pool alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdebug.engine.model.interface import LayerAttention, StoredAttention
from specdebug.engine.model.latent_rope import LatentRotary
from specdebug.engine.model.layers import Norm, gated_mlp_into
from specdebug.engine.model.linear import head_linear, linear, linear_into


class FeedForward(Protocol):
    """The second half of a layer, its norm included."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, H] -> x plus what is computed from it, in x's place."""


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """norm: before it. gate_up [H, 2*I], down [I, H]."""

    norm: Norm
    gate_up: Tensor
    down: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return gated_mlp_into(x, self.norm(x), self.gate_up, self.down)


@dataclass(frozen=True, slots=True)
class LatentLayer:
    """Attention and MLP with their residuals. C is the latent's width, R the key part's, Dn and Dv a projected head's.

    projection [H, Q + C + R]: queries, or their latent where ``q_up`` is given, then a token's latent and key part.
    q_norm, q_up [Q, Hq*(Dn+R)]: of compressed queries. latent_norm: of c. k_up [Hq, Dn, C]: W_UK transposed. v_up
    [Hq, C, Dv]: W_UV. output [Hq*Dv, H].
    """

    layer_id: int
    rotary: LatentRotary
    projection: Tensor
    q_norm: Norm | None
    q_up: Tensor | None
    latent_norm: Norm
    k_up: Tensor
    v_up: Tensor
    output: Tensor
    mlp: FeedForward

    def forward(self, normed: Tensor, residual: Tensor, phases: Tensor, attn: LayerAttention) -> Tensor:
        """As ``interface.Layer`` says."""
        rotated = self.rotary.flat_table.shape[1]
        width = self.k_up.shape[2] + rotated
        projected = linear(normed, self.projection)
        queries = projected[:, : projected.shape[1] - width]
        if self.q_norm is not None and self.q_up is not None:
            queries = linear(self.q_norm(queries), self.q_up)
        heads, nope = self.k_up.shape[:2]
        queries = queries.reshape(normed.shape[0], heads, nope + rotated)
        attended = self._attend(queries, projected[:, -width:], phases, attn)
        values = queries.new_empty(queries.shape[0], heads, self.v_up.shape[2])
        head_linear(attended.view(normed.shape[0], heads, width - rotated), self.v_up, values)
        x = linear_into(residual, values.flatten(1), self.output)
        return self.mlp(x)

    def _attend(self, queries: Tensor, row: Tensor, phases: Tensor, attn: LayerAttention) -> Tensor:
        """Bring queries [n, Hq, Dn + R] to the latent's space, store row [n, C + R], and attend: [n, Hq*C]."""
        heads, nope, latent = self.k_up.shape
        absorbed = queries.new_empty(queries.shape[0], heads, row.shape[1])
        if row.is_cuda and isinstance(attn, StoredAttention):
            from specdebug.engine.kernels.triton.products import absorb_and_store

            rows, norm = attn.destination(self.layer_id), self.latent_norm
            places = (absorbed, rows.k, rows.slots)
            absorb_and_store(queries, self.k_up, row, phases, self.rotary.flat_table, norm.gain, norm.eps, *places)
            return attn.attend(self.layer_id, absorbed)
        head_linear(queries[..., :nope], self.k_up, absorbed[..., :latent])
        absorbed[..., latent:] = self.rotary.turn(queries[..., nope:], phases)
        parts = (self.latent_norm.with_gain(row[:, :latent]), self.rotary.turn(row[:, latent:], phases))
        stored = torch.cat(parts, 1).unsqueeze(1)
        return attn(self.layer_id, absorbed, stored, stored[..., :latent])

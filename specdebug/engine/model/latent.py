"""A decoder layer with multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1), its up-projections absorbed,
and DeepSeek-V3's routed experts (arXiv 2412.19437, 2.1.2).

Each token stores one row for all heads: its normed latent c and a rotated key part. As q . (c W_UK[h]) =
(q W_UK[h]^T) . c, queries are brought into the latent's space, all heads attend the rows as they are, and the result is
brought back by W_UV. A group of experts is ranked by the sum of its best two; of the best groups the best experts
are chosen, by sigmoid scores that a bias corrects for the choice alone.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specdebug.engine.model.deepseek_config import ExpertsConfig
from specdebug.engine.model.interface import LayerAttention, StoredAttention
from specdebug.engine.model.layers import Norm, gated_mlp_into, head_linear, linear, linear_into, silu_mul
from specdebug.engine.model.rope import LatentRotary


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


_ROWS_AT_ONCE = 2048
"""Tokens that a GPU computes at a time, which bounds the memory it takes."""


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """norm: before all of it. router [H, E] and bias [E] in f32. gate_up [E + S, H, 2*I] and down [E + S, I, H] of the
    E routed experts and then of the S that every token has; ``layers.py`` says how each is laid out."""

    config: ExpertsConfig
    norm: Norm
    router: Tensor
    bias: Tensor
    gate_up: Tensor
    down: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, H] -> x plus its experts' results, in x's place."""
        normed = self.norm.with_gain(x)
        if not x.is_cuda:
            return self._compute_chosen(x, normed, *self.route(normed))
        from specdebug.engine.kernels.triton.experts import add_experts, route

        chosen, weights = route(normed, self.router, self.bias, self.config)
        for start in range(0, x.shape[0], _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            add_experts(x[part], normed[part], self.gate_up, self.down, chosen[part], weights[part])
        return x

    def route(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token, i64 [n, k + S], and the weights of their results, f32 [n, k + S], in f32."""
        config = self.config
        scores = torch.mm(normed.float(), self.router).sigmoid_()
        ranked = scores + self.bias
        by_group = ranked.view(-1, config.groups, config.count // config.groups)
        best_groups = by_group.topk(2, -1).values.sum(-1).topk(config.groups_per_token, -1).indices
        open_groups = torch.zeros_like(by_group[..., 0], dtype=torch.bool).scatter_(1, best_groups, True)
        ranked = by_group.masked_fill(~open_groups.unsqueeze(-1), float("-inf")).flatten(1)
        chosen = ranked.topk(config.per_token, -1).indices
        weights = scores.gather(1, chosen)
        if config.norm_weights:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        shared = torch.arange(config.count, config.count + config.shared, device=chosen.device)
        chosen = torch.cat((chosen, shared.expand(chosen.shape[0], -1)), 1)
        return chosen, F.pad(weights * config.scaling_factor, (0, config.shared), value=1.0)

    def _compute_chosen(self, x: Tensor, normed: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Expert by expert, the tokens that chose it."""
        for expert in sorted(set(chosen.flatten().tolist())):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            inner = silu_mul(linear(normed[token], self.gate_up[expert]))
            result = linear(inner, self.down[expert])
            x.index_add_(0, token, (result * weights[token, place, None]).to(x.dtype))
        return x

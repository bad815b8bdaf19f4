"""Routed experts of DeepSeek-V3 (arXiv 2412.19437, 2.1.2): a sigmoid router whose choice, not weight, a bias corrects.

Experts come in groups. A group is ranked by the sum of its best two; of the best groups the best experts are chosen.
The experts that every token has are kept behind those, and are in every choice with weight 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdebug.engine.model.deepseek_config import ExpertsConfig
from specdebug.engine.model.layers import Norm, silu_mul
from specdebug.engine.model.linear import linear

_ROWS_AT_ONCE = 2048
"""Tokens that a GPU computes at a time, which bounds the memory it takes."""


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """norm: before all of it. router [H, E] and bias [E] in f32. gate_up [E + S, H, 2*I] and down [E + S, I, H] of the
    E routed experts and then of the S that every token has; ``linear.py`` says how each is laid out."""

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

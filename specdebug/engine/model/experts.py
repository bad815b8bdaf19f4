"""Routed experts of DeepSeek-V3 (arXiv 2412.19437, 2.1.2): a sigmoid router whose choice, not weight, a bias corrects.

Experts come in groups. A group is ranked by the sum of its best two; of the best groups the best experts are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.engine.model.deepseek_config import ExpertsConfig
from specdebug.engine.model.layers import Norm, gated_mlp_into, silu_mul
from specdebug.engine.model.linear import linear

_COPIES = 3
"""How often a chosen expert's weights pass through a GPU's memory where they are copied: read, written, read again."""

_ROWS_AT_ONCE = 64
"""Tokens that every expert computes at a time, which bounds the memory it takes."""


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """norm: before all of it. router [H, E] and bias [E] in f32. gate_up [E, H, 2*I] and down [E, I, H] of the routed
    experts, shared_gate_up [H, 2*J] and shared_down [J, H] of those that every token has."""

    config: ExpertsConfig
    norm: Norm
    router: Tensor
    bias: Tensor
    gate_up: Tensor
    down: Tensor
    shared_gate_up: Tensor
    shared_down: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, H] -> x plus its experts' results, in x's place."""
        normed = self.norm.with_gain(x)
        chosen, weights = self.route(normed)
        x = gated_mlp_into(x, normed, self.shared_gate_up, self.shared_down)
        if not x.is_cuda:
            return self._compute_chosen(x, normed, chosen, weights)
        if chosen.numel() * _COPIES <= self.config.count:
            return self._compute_copies(x, normed, chosen, weights)
        return self._compute_all(x, normed, chosen, weights)

    def route(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token, i64 [n, k], and the weights of their results, f32 [n, k]; computed in f32."""
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
        return chosen, weights * config.scaling_factor

    def _compute_chosen(self, x: Tensor, normed: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Expert by expert, the tokens that chose it."""
        for expert in sorted(set(chosen.flatten().tolist())):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            inner = silu_mul(linear(normed[token], self.gate_up[expert]))
            result = linear(inner, self.down[expert])
            x.index_add_(0, token, (result * weights[token, place, None]).to(x.dtype))
        return x

    def _compute_copies(self, x: Tensor, normed: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """On a GPU, of few tokens: the weights of the chosen experts alone, side by side."""
        count, each = chosen.shape
        experts = chosen.flatten()
        rows = normed.repeat_interleave(each, 0).unsqueeze(1)
        inner = silu_mul(torch.bmm(rows, self.gate_up.index_select(0, experts)).squeeze(1))
        inner = (inner * weights.reshape(-1, 1).to(inner.dtype)).unsqueeze(1)
        results = torch.bmm(inner, self.down.index_select(0, experts))
        return x.add_(results.view(count, each, x.shape[1]).sum(1))

    def _compute_all(self, x: Tensor, normed: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """On a GPU: every expert on all tokens, weighted by zero where it was not chosen. Launches follow from shapes
        alone, as a graph needs."""
        per_expert = weights.new_zeros(x.shape[0], self.config.count).scatter_(1, chosen, weights)
        for start in range(0, x.shape[0], _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            inner = torch.bmm(normed[part].expand(self.config.count, -1, -1), self.gate_up)
            inner = silu_mul(inner.flatten(0, 1)).view(*inner.shape[:2], -1)
            inner = inner * per_expert[part].t().unsqueeze(-1).to(inner.dtype)
            x[part] += torch.bmm(inner, self.down).sum(0)
        return x

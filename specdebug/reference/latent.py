"""DeepSeek's multi-head latent attention and routed experts, written out: nothing is absorbed, every head's keys and
values are made from the latent each time (DeepSeek-V2, section 2.1; DeepSeek-V3, section 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from specdebug.reference.config import Experts, LatentAttention, ModelConfig
from specdebug.reference.layers import Weights, apply_rope, gated_mlp, split_heads

LATENT_EPS = 1e-6
"""Of the norms inside the attention, whatever ``rms_norm_eps`` says, as transformers' DeepseekV3Attention has it."""


def project_latent(
    weights: Weights, prefix: str, config: ModelConfig, x: Tensor, rope: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """q [..., Hq, n, nope + rope], and what a position keeps: the rotated key [..., 1, n, rope] and the normed latent
    [..., 1, n, kv_lora_rank]. ``rope`` is of ``qk_rope_head_dim`` columns."""
    shape = _latent_of(config)
    if shape.q_lora_rank is None:
        q = F.linear(x, weights[f"{prefix}q_proj.weight"])
    else:
        low = F.linear(x, weights[f"{prefix}q_a_proj.weight"], weights.get(f"{prefix}q_a_proj.bias"))
        q = F.linear(_norm(low, weights[f"{prefix}q_a_layernorm.weight"]), weights[f"{prefix}q_b_proj.weight"])
    q = split_heads(q, config.num_heads)
    q_nope, q_rope = torch.split(q, [shape.qk_nope_head_dim, shape.qk_rope_head_dim], dim=-1)
    name = f"{prefix}kv_a_proj_with_mqa"
    kept = F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))[..., None, :, :]
    latent, key = torch.split(kept, [shape.kv_lora_rank, shape.qk_rope_head_dim], dim=-1)
    q = torch.cat([q_nope, _rotate(q_rope, rope, shape)], dim=-1)
    return q, _rotate(key, rope, shape), _norm(latent, weights[f"{prefix}kv_a_layernorm.weight"])


def expand_latent(
    weights: Weights, prefix: str, config: ModelConfig, key: Tensor, latent: Tensor
) -> tuple[Tensor, Tensor]:
    """Every head's keys [..., Hq, n, nope + rope] and values [..., Hq, n, v] of what positions keep."""
    shape = _latent_of(config)
    both = split_heads(F.linear(latent[..., 0, :, :], weights[f"{prefix}kv_b_proj.weight"]), config.num_heads)
    k_nope, v = torch.split(both, [shape.qk_nope_head_dim, shape.v_head_dim], dim=-1)
    return torch.cat([k_nope, key.expand(*k_nope.shape[:-1], -1)], dim=-1), v


def mixed_experts(weights: Weights, prefix: str, experts: Experts, x: Tensor) -> Tensor:
    """The shared experts and, by their weights, the routed experts chosen for each row of [..., n, H]."""
    chosen, shares = _route(weights, prefix, experts, x)
    out = gated_mlp(weights, f"{prefix}shared_experts.", x)
    for expert in range(experts.n_routed_experts):
        share = (shares * (chosen == expert)).sum(-1, keepdim=True)
        rows = share[..., 0] != 0
        if rows.any():
            part = gated_mlp(weights, f"{prefix}experts.{expert}.", x[rows]) * share[rows]
            out = out.index_put((rows,), part.to(out.dtype), accumulate=True)
    return out


def _route(weights: Weights, prefix: str, experts: Experts, x: Tensor) -> tuple[Tensor, Tensor]:
    """The experts of each row, int64 [..., k], and their weights: sigmoid scores, chosen by score plus a bias from the
    ``topk_group`` groups whose two best add up to most."""
    scores = F.linear(x.float(), weights[f"{prefix}gate.weight"].float()).sigmoid()
    biased = scores + weights[f"{prefix}gate.e_score_correction_bias"].float()
    groups = biased.view(*biased.shape[:-1], experts.n_group, -1)
    best = groups.topk(2, dim=-1).values.sum(-1).topk(experts.topk_group, dim=-1).indices
    open_groups = torch.zeros_like(groups[..., 0], dtype=torch.bool).scatter(-1, best, True)
    biased = groups.masked_fill(~open_groups[..., None], float("-inf")).flatten(-2)
    chosen = biased.topk(experts.num_experts_per_tok, dim=-1).indices
    shares = scores.gather(-1, chosen)
    if experts.norm_topk_prob:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    return chosen, shares * experts.routed_scaling_factor


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor], shape: LatentAttention) -> Tensor:
    """Rotate [..., n, rope]; pairs of neighbours come out with their first elements in the first half."""
    if shape.rope_interleave:
        x = torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)
    return apply_rope(x, rope)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), LATENT_EPS).to(x.dtype)


def _latent_of(config: ModelConfig) -> LatentAttention:
    if config.latent is None:
        raise ValueError("the model has no latent attention")
    return config.latent

"""The pieces of a decoder layer of either family, as published: RMS norm, rotary positions, gated MLP, routed experts,
attention with grouped queries (Llama) or over a latent (DeepSeek).

Of latent attention nothing is absorbed: every head's keys and values are made from the latent each time (DeepSeek-V2,
section 2.1; DeepSeek-V3, section 2.1). Tensors may carry leading batch axes; ``n`` is the sequence axis throughout.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from specdebug.reference.config import Experts, LatentAttention, ModelConfig

Weights = Mapping[str, Tensor]


def rope_tables(config: ModelConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each float32 [n, head_dim], for int64 positions [n]."""
    half = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32)
    inv_freq = 1.0 / config.rope_theta ** (half / config.head_dim)
    scaling = config.rope_scaling
    if scaling is not None:
        turns = scaling.original_max_position_embeddings / (2 * math.pi / inv_freq)
        keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        keep = keep.clamp(0.0, 1.0)
        inv_freq = inv_freq * (keep + (1.0 - keep) / scaling.factor)
    angles = positions.to(torch.float32)[:, None] * inv_freq[None, :]
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate [..., heads, n, head_dim]; element i is paired with i + head_dim / 2."""
    cos, sin = rope
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-high, low], dim=-1) * sin).to(x.dtype)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[..., n, heads * head_dim] -> [..., heads, n, head_dim]."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).transpose(-2, -3)


def merge_heads(x: Tensor) -> Tensor:
    """[..., heads, n, head_dim] -> [..., n, heads * head_dim]."""
    return x.transpose(-2, -3).flatten(-2)


def project_qkv(
    weights: Weights, prefix: str, config: ModelConfig, x: Tensor, rope: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """q [..., Hq, n, D], k and v [..., Hkv, n, D]; q and k rotated."""
    q = split_heads(F.linear(x, weights[f"{prefix}q_proj.weight"]), config.num_heads)
    k = split_heads(F.linear(x, weights[f"{prefix}k_proj.weight"]), config.num_kv_heads)
    v = split_heads(F.linear(x, weights[f"{prefix}v_proj.weight"]), config.num_kv_heads)
    return apply_rope(q, rope), apply_rope(k, rope), v


def repeat_kv(x: Tensor, config: ModelConfig) -> Tensor:
    """[..., Hkv, n, D] -> [..., Hq, n, D]: every key head serves ``num_heads / num_kv_heads`` query heads."""
    return x.repeat_interleave(config.num_heads // config.num_kv_heads, dim=-3)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from the last ``n`` of ``m`` positions: q [..., Hq, n, D], k and v [..., Hq, m, D] -> like q."""
    n, m = q.shape[-2], k.shape[-2]
    if n == m:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    visible = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def rms_norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    """Norm the last axis, in float32 whatever the input, as Llama does."""
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), config.rms_norm_eps).to(x.dtype)


def gated_mlp(weights: Weights, prefix: str, x: Tensor) -> Tensor:
    """down(silu(gate(x)) * up(x))."""
    gate = F.silu(F.linear(x, weights[f"{prefix}gate_proj.weight"]))
    up = F.linear(x, weights[f"{prefix}up_proj.weight"])
    return F.linear(gate * up, weights[f"{prefix}down_proj.weight"])


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


def project(
    weights: Weights, prefix: str, config: ModelConfig, x: Tensor, rope: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [..., Hq, n, D], and the rotated key and the value that a position keeps, as ``config.stored_shape``
    says. ``prefix`` is of the attention."""
    family = project_qkv if config.latent is None else project_latent
    return family(weights, prefix, config, x, rope)


def expand(weights: Weights, prefix: str, config: ModelConfig, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of every query head, [..., Hq, n, D], from what positions keep."""
    if config.latent is None:
        return repeat_kv(k, config), repeat_kv(v, config)
    return expand_latent(weights, prefix, config, k, v)


def finish(weights: Weights, prefix: str, config: ModelConfig, attended: Tensor, residual: Tensor) -> Tensor:
    """The rest of a layer behind attention [..., Hq, n, D]: output projection and MLP, each added to the residual
    [..., n, H]. ``prefix`` is of the layer."""
    x = residual + F.linear(merge_heads(attended), weights[f"{prefix}self_attn.o_proj.weight"])
    normed = rms_norm(x, weights[f"{prefix}post_attention_layernorm.weight"], config)
    if f"{prefix}mlp.gate.weight" in weights and config.experts is not None:
        return x + mixed_experts(weights, f"{prefix}mlp.", config.experts, normed)
    return x + gated_mlp(weights, f"{prefix}mlp.", normed)

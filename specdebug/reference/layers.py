"""The pieces of a Llama layer, as published: RMS norm, rotary positions, grouped-query attention, gated MLP.

Tensors may carry leading batch axes; ``n`` is the sequence axis throughout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from specdebug.reference.config import ModelConfig

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

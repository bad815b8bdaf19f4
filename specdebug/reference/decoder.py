"""A decoder layer of either family, Llama's or DeepSeek's: what a position keeps, what heads attend to, the MLP."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from specdebug.reference.config import ModelConfig
from specdebug.reference.latent import expand_latent, mixed_experts, project_latent
from specdebug.reference.layers import Weights, gated_mlp, merge_heads, project_qkv, repeat_kv, rms_norm


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

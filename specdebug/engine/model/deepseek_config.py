"""``config.json`` of a DeepSeek model with multi-head latent attention, read into a frozen value.

Keys are those of transformers' ``DeepseekV3Config``, in both spellings of RoPE. What we do not support is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specdebug.engine.model.config import MAX_HEAD_DIM, Keys, common_of, refuse_the_unsupported, rope_of, shown

DEEPSEEK_ARCHITECTURE = "DeepseekV3ForCausalLM"
NEXTN_ARCHITECTURE = "DeepseekV3ForCausalLMNextN"
"""A folder that holds the next-n layer of such a model alone."""

LATENT_NORM_EPS = 1e-6
"""Of the norms of both latents, which ``rms_norm_eps`` is not about (as in transformers and in DeepSeek's own code)."""


@dataclass(frozen=True)
class ExpertsConfig:
    """Routed experts (DeepSeek-V3, arXiv 2412.19437, 2.1.2): E in G groups, of which a token's best ones compete."""

    count: int  # E
    per_token: int
    groups: int  # G
    groups_per_token: int
    intermediate_size: int  # of one expert
    shared: int  # experts that every token has
    scaling_factor: float
    norm_weights: bool


@dataclass(frozen=True)
class DeepseekConfig:
    """Shapes and constants of a decoder with latent attention. Sizes count elements.

    Attention is computed in the latent's space: one key head of kv_lora_rank + qk_rope_head_dim columns for all query
    heads, its first kv_lora_rank columns the value. ``num_kv_heads``, ``head_dim`` and ``value_dim`` say so.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    first_k_dense_replace: int
    experts: ExpertsConfig | None
    num_nextn_layers: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_interleave: bool
    tie_word_embeddings: bool
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    kv_layout: str = "mla"
    num_kv_heads: int = 1

    @property
    def qk_head_dim(self) -> int:
        """The width of a query head as projected."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def head_dim(self) -> int:
        """The width of a query and of a key in the latent's space, that of a row of the KV pool."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def value_dim(self) -> int:
        return self.kv_lora_rank

    @property
    def rotary_dim(self) -> int:
        return self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """The factor of attention's scores, which is that of the heads as projected."""
        return float(self.qk_head_dim**-0.5)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> DeepseekConfig:
        """Read the parsed ``config.json``; ``where`` (its path) opens every message.
        Raises CheckpointError if a key is missing or of the wrong kind, or asks for what the engine does not do."""
        keys = Keys(data, where)
        refuse_the_unsupported(keys)
        if keys.flag("attention_bias"):
            raise keys.error("attention_bias true is not supported; no published DeepSeek uses it")
        for key, only in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc"), ("moe_layer_freq", 1)):
            if data.get(key, only) != only:
                raise keys.error(f"{key} {shown(data[key])} is not supported, only {only!r}")
        num_heads = keys.positive_int("num_attention_heads")
        num_kv_heads = keys.positive_int("num_key_value_heads", num_heads)
        if num_kv_heads != num_heads:
            problem = f"num_key_value_heads {num_kv_heads} is not num_attention_heads {num_heads}"
            raise keys.error(f"{problem}; latent attention has a key for each query head")
        theta, _ = rope_of(keys, kinds=("default",))
        sizes: dict[str, Any] = {
            name: _head_size(keys, name) for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
        }
        common = common_of(keys)
        return cls(
            q_lora_rank=None if data.get("q_lora_rank") is None else keys.positive_int("q_lora_rank"),
            qk_rope_head_dim=_head_size(keys, "qk_rope_head_dim", even=True),
            **sizes,
            first_k_dense_replace=_first_sparse(keys, common["num_layers"]),
            experts=None if data.get("n_routed_experts") is None else _experts(keys),
            num_nextn_layers=_count(keys, "num_nextn_predict_layers", 0),
            rope_theta=theta,
            rope_interleave=keys.flag("rope_interleave", True),
            **common,
        )


def _head_size(keys: Keys, key: str, *, even: bool = False) -> int:
    size = keys.positive_int(key)
    if size > MAX_HEAD_DIM:
        raise keys.error(f"{key} {size} is more than {MAX_HEAD_DIM}")
    if even and size % 2:
        raise keys.error(f"{key} {size} is odd; RoPE turns pairs")
    return size


def _count(keys: Keys, key: str, default: int) -> int:
    """A whole number that may be 0."""
    value = keys.data.get(key)
    value = default if value is None else value
    return 0 if type(value) is int and value == 0 else keys.positive_int(key, default)


def _first_sparse(keys: Keys, num_layers: int) -> int:
    """The first layer with routed experts; without experts every layer is dense, which the config must not deny."""
    if keys.data.get("n_routed_experts") is not None:
        return _count(keys, "first_k_dense_replace", 0)
    first = _count(keys, "first_k_dense_replace", num_layers)
    if first < num_layers:
        problem = f"first_k_dense_replace {first} leaves layers to experts, but n_routed_experts is missing"
        raise keys.error(f"{problem}; without experts it is at least num_hidden_layers {num_layers}")
    return first


def _experts(keys: Keys) -> ExpertsConfig:
    count, groups = keys.positive_int("n_routed_experts"), keys.positive_int("n_group")
    chosen, per_token = keys.positive_int("topk_group"), keys.positive_int("num_experts_per_tok")
    if count % groups or count // groups < 2:
        problem = f"n_routed_experts {count} does not make {groups} groups (n_group) of two experts or more"
        raise keys.error(f"{problem}; a group is ranked by its best two")
    if chosen > groups:
        raise keys.error(f"topk_group {chosen} is more than n_group {groups}")
    if per_token > chosen * (count // groups):
        problem = f"num_experts_per_tok {per_token} is more than the experts of {chosen} groups (topk_group)"
        raise keys.error(problem)
    return ExpertsConfig(
        count=count,
        per_token=per_token,
        groups=groups,
        groups_per_token=chosen,
        intermediate_size=keys.positive_int("moe_intermediate_size"),
        shared=keys.positive_int("n_shared_experts"),
        scaling_factor=keys.positive_float("routed_scaling_factor"),
        norm_weights=keys.flag("norm_topk_prob", True),
    )

"""Shapes of a Llama-family or DeepSeek-V3 checkpoint, read from its ``config.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specdebug.base.errors import CheckpointError, one_line
from specdebug.base.files import read_file

MAX_BYTES = 64 << 20
"""The size limit of a config; published ones have a few KiB."""
ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "DeepseekV3ForCausalLM"})
"""Targets that the dense model is a model of; others' configs may be read as if they were."""


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """The llama3 RoPE rule: long wavelengths are stretched by ``factor``, short ones kept, a ramp lies between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): a position keeps ``kv_lora_rank`` columns from which
    every head's key and value are made, and one rotated key of ``qk_rope_head_dim`` that all heads share."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope_interleave: bool = True
    """Neighbours 2i and 2i+1 are rotated together; else i and i + half."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The routed experts of DeepSeek-V3's layers from ``first_k_dense_replace`` on."""

    first_k_dense_replace: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    routed_scaling_factor: float
    norm_topk_prob: bool


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shapes and constants of a target or of a draft head."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | None = None
    tie_word_embeddings: bool = False
    draft_vocab_size: int | None = None
    """The rows of an EAGLE-3 head's own lm_head; None for a target and for an EAGLE head."""
    aux_layers: tuple[int, ...] | None = None
    """Target layers whose inputs an EAGLE-3 head reads, when its config names them."""
    latent: LatentAttention | None = None
    """Of a DeepSeek model; ``head_dim`` is then ``qk_rope_head_dim``, what is rotated of a head."""
    experts: Experts | None = None
    nextn_layers: int = 0
    """Next-n layers of a multi-token-prediction draft; they follow the target's ``num_layers``."""
    chain_hidden_states: bool = False
    """A next-n layer reads the layer before it in place of the target's hidden state."""
    target_kv_layers: tuple[int, ...] = ()
    """The target layers whose keys and values each layer of an assistant reads."""

    @property
    def stored_shape(self) -> tuple[int, int, int]:
        """What a layer keeps of a position: heads, and the columns of a head's key and of its value; of latent
        attention the rotated key that heads share, and the latent."""
        if self.latent is not None:
            return 1, self.latent.qk_rope_head_dim, self.latent.kv_lora_rank
        return self.num_kv_heads, self.head_dim, self.head_dim

    def default_aux_layers(self) -> tuple[int, int, int]:
        """The layers whose inputs a head reads when its config names none (published EAGLE-3 convention)."""
        return (2, self.num_layers // 2, self.num_layers - 3)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ModelConfig:
        """Read the keys of a ``config.json``, old (``rope_theta``) or new (``rope_parameters``) style."""
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        scaling = None
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "llama3":
            scaling = Llama3Scaling(**{field.name: rope[field.name] for field in fields(Llama3Scaling)})
        elif kind != "default":
            raise CheckpointError(f"RoPE scaling '{one_line(str(kind))}' is not supported; known: default, llama3")
        # Lists that start with 1 name layer outputs, and the output of layer i is the input of layer i + 1; all
        # others name the inputs themselves (sgl-project/sglang pull request 25454).
        named = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        heads = raw["num_attention_heads"]
        latent = _latent(raw)
        head_dim = latent.qk_rope_head_dim if latent else raw.get("head_dim") or raw["hidden_size"] // heads
        return cls(
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_layers=raw["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=heads if latent else raw.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            vocab_size=raw["vocab_size"],
            rms_norm_eps=raw.get("rms_norm_eps") or 1e-6,
            rope_theta=rope.get("rope_theta") or raw.get("rope_theta") or 10000.0,
            rope_scaling=scaling,
            tie_word_embeddings=bool(raw.get("tie_word_embeddings")),
            draft_vocab_size=raw.get("draft_vocab_size"),
            aux_layers=tuple(i + (named[0] == 1) for i in named) if named else None,
            latent=latent,
            experts=_experts(raw) if latent else None,
            nextn_layers=raw.get("num_nextn_predict_layers") or 0,
            chain_hidden_states=bool(raw.get("mtp_chain_hidden_states")),
            target_kv_layers=tuple(raw.get("target_kv_layers") or ()),
        )


def is_read(path: Path) -> bool:
    """Return False for a target's folder whose config names an architecture that the dense model is none of."""
    try:
        named = json.loads(read_file(path / "config.json", MAX_BYTES)).get("architectures")
    except (OSError, ValueError, AttributeError):
        return True  # its loader says what is wrong
    return not named or not ARCHITECTURES.isdisjoint(named)


def _latent(raw: dict[str, Any]) -> LatentAttention | None:
    if raw.get("kv_lora_rank") is None:
        return None
    return LatentAttention(
        q_lora_rank=raw.get("q_lora_rank"),
        kv_lora_rank=raw["kv_lora_rank"],
        qk_nope_head_dim=raw["qk_nope_head_dim"],
        qk_rope_head_dim=raw["qk_rope_head_dim"],
        v_head_dim=raw["v_head_dim"],
        rope_interleave=raw.get("rope_interleave", True),
    )


def _experts(raw: dict[str, Any]) -> Experts | None:
    if not raw.get("n_routed_experts") or raw["first_k_dense_replace"] >= raw["num_hidden_layers"]:
        return None
    return Experts(**{field.name: raw[field.name] for field in fields(Experts)})


def read_config(path: Path) -> ModelConfig:
    """Read ``path/config.json``. Raises CheckpointError when it is missing, malformed, or lacks a key."""
    file = path / "config.json"
    try:
        return ModelConfig.from_dict(json.loads(read_file(file, MAX_BYTES).decode()))
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing; give a Hugging Face checkpoint folder") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{file}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise CheckpointError(f"{file}: key {error} is missing") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: holds a value of the wrong kind ({one_line(str(error), 100)})") from None

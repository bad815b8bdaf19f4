"""Shapes of a Llama-family checkpoint, read from its ``config.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specdebug.errors import CheckpointError, one_line
from specdebug.files import read_file

MAX_BYTES = 64 << 20
"""The size limit of a config; published ones have a few KiB."""


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """The llama3 RoPE rule: long wavelengths are stretched by ``factor``, short ones kept, a ramp lies between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


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
        return cls(
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_layers=raw["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            vocab_size=raw["vocab_size"],
            rms_norm_eps=raw.get("rms_norm_eps") or 1e-6,
            rope_theta=rope.get("rope_theta") or raw.get("rope_theta") or 10000.0,
            rope_scaling=scaling,
            tie_word_embeddings=bool(raw.get("tie_word_embeddings")),
            draft_vocab_size=raw.get("draft_vocab_size"),
            aux_layers=tuple(i + (named[0] == 1) for i in named) if named else None,
        )


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

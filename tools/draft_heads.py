"""Fresh draft heads of every kind, under their published names, and the configs that are written beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from train_target import MAX_POSITIONS
from training import base_config, layer_weights, scaled_normal

from specdebug.reference.config import ModelConfig

KINDS = ("eagle", "eagle3", "nextn", "mtp", "assistant")
DRAFT_VOCAB_SIZE = 1280
INTERMEDIATE_SIZE = 448
MTP_LAYERS = 3
ASSISTANT_TARGET_LAYERS = (6, 12)
"""Whose keys and values the assistant's layers read: in the middle, where a position knows the token before it, and
near the end, where it knows what should follow."""


def head_config(kind: str, target: ModelConfig) -> ModelConfig:
    """The shapes of a head of this kind for a target."""
    shape = replace(target, intermediate_size=INTERMEDIATE_SIZE)
    if kind in ("nextn", "mtp"):
        return replace(shape, nextn_layers=1 if kind == "nextn" else MTP_LAYERS)
    if kind == "assistant":
        return replace(shape, num_layers=len(ASSISTANT_TARGET_LAYERS), target_kv_layers=ASSISTANT_TARGET_LAYERS)
    if kind == "eagle":  # borrows the target's lm_head and so inherits whether it is tied; EAGLE-3 has its own
        return replace(shape, num_layers=1)
    return replace(shape, num_layers=1, draft_vocab_size=DRAFT_VOCAB_SIZE, tie_word_embeddings=False)


def head_weights(
    kind: str, config: ModelConfig, target: dict[str, Tensor], keep: Tensor | None, generator: torch.Generator
) -> dict[str, Tensor]:
    """A fresh head under published names; ``keep``: an EAGLE-3 head's vocabulary in target ids."""
    if kind in ("nextn", "mtp"):
        return _nextn_weights(config, target, generator)
    if kind == "assistant":
        return _assistant_weights(config, target, generator)
    return _eagle_weights(config, target, keep, generator)


def file_config(kind: str, config: ModelConfig) -> dict[str, Any]:
    """The published ``config.json`` of a head of this shape."""
    shared = base_config(config, MAX_POSITIONS)
    more: dict[str, Any] = {
        "eagle": {"bias": True},
        "eagle3": {"draft_vocab_size": config.draft_vocab_size},
        "nextn": {"num_nextn_predict_layers": config.nextn_layers},
        "mtp": {"num_nextn_predict_layers": config.nextn_layers, "mtp_chain_hidden_states": config.chain_hidden_states},
        "assistant": {"target_kv_layers": list(config.target_kv_layers)},
    }[kind]
    architecture = {
        "eagle": "LlamaForCausalLMEagle",
        "eagle3": "LlamaForCausalLMEagle3",
        "nextn": "DeepseekV3ForCausalLMNextN",
        "mtp": "LlamaForCausalLMNextN",
        "assistant": "LlamaForCausalLMAssistant",
    }[kind]
    return {"architectures": [architecture], **shared, **more}


def _eagle_weights(
    config: ModelConfig, target: dict[str, Tensor], keep: Tensor | None, generator: torch.Generator
) -> dict[str, Tensor]:
    device, hidden = target["model.embed_tokens.weight"].device, config.hidden_size
    layer, width = ("layers.0.", hidden) if keep is None else ("midlayer.", 2 * hidden)
    weights = layer_weights(config, layer, generator, device, into_residual=0.3, width=width)
    if keep is None:
        return weights | {
            "fc.weight": scaled_normal(hidden, 2 * hidden, generator, device, 1.0),
            "fc.bias": torch.zeros(hidden, device=device),
        }
    in_draft = torch.zeros(config.vocab_size, dtype=torch.bool, device=device)
    in_draft[keep] = True
    return weights | {
        "fc.weight": scaled_normal(hidden, 3 * hidden, generator, device, 1.0),
        "midlayer.input_layernorm.weight": torch.ones(hidden, device=device),
        "midlayer.hidden_norm.weight": torch.ones(hidden, device=device),
        "norm.weight": target["model.norm.weight"].clone(),
        "lm_head.weight": target["model.embed_tokens.weight"][keep].clone(),
        "d2t": keep - torch.arange(len(keep), device=device),
        "t2d": in_draft,
    }


def _nextn_weights(config: ModelConfig, target: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    device, hidden = target["model.embed_tokens.weight"].device, config.hidden_size
    weights: dict[str, Tensor] = {}
    for index in range(config.nextn_layers):
        prefix = f"model.layers.{config.num_layers + index}."
        weights |= layer_weights(config, prefix, generator, device, into_residual=0.3)
        weights |= {f"{prefix}{name}.weight": torch.ones(hidden, device=device) for name in ("enorm", "hnorm")}
        weights[f"{prefix}eh_proj.weight"] = scaled_normal(hidden, 2 * hidden, generator, device, 1.0)
        weights[f"{prefix}input_layernorm.weight"] = torch.ones(hidden, device=device)
        weights[f"{prefix}shared_head.norm.weight"] = target["model.norm.weight"].clone()
    return weights


def _assistant_weights(config: ModelConfig, target: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    device, hidden = target["model.embed_tokens.weight"].device, config.hidden_size
    weights = {
        "fc.weight": scaled_normal(hidden, 2 * hidden, generator, device, 1.0),
        "norm.weight": target["model.norm.weight"].clone(),
    }
    for index in range(config.num_layers):
        prefix = f"layers.{index}."
        layer = layer_weights(config, prefix, generator, device, into_residual=0.3)
        weights |= {name: w for name, w in layer.items() if not name.endswith(("k_proj.weight", "v_proj.weight"))}
        weights[f"{prefix}input_layernorm.weight"] = torch.ones(hidden, device=device)
    return weights

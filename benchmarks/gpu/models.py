"""Models of a published shape with random weights made where they are used: for timing, not for reading.

The weights are scaled so that activations keep their size over any depth, and so that a token decides most of what
follows it: the layers only nudge its embedding. Draft models pass the embedding on as well, so they guess the target's
next token often, not always, and a decode loop sees accepts of every length.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.config import LlamaConfig, RopeScaling
from specdebug.engine.model.loader import build_assistant, build_eagle, build_mtp, build_target
from specdebug.engine.model.models import AssistantDraft, EagleDraft, MTPDraft, TargetModel
from specdebug.engine.model.weights import Weights

# Llama 3.1 8B's config.json; no token ends a sequence
LLAMA_8B = LlamaConfig(
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
    tie_word_embeddings=False,
    max_position_embeddings=131072,
    eos_token_ids=(),
    qkv_bias=False,
    output_bias=False,
)
MAX_POSITIONS = 8192
BRANCH = 0.05  # of a layer's two branches against the residual they are added to


def make_target(
    config: LlamaConfig = LLAMA_8B,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cuda",
    *,
    max_positions: int = MAX_POSITIONS,
    seed: int = 0,
) -> TargetModel:
    """A target of ``config``'s shape; the 8B shape takes 16.1 GB in bf16. ``max_positions`` sizes the RoPE table."""
    source = RandomTensors(dtype, torch.device(device), seed)
    return build_target(Weights(source, config, dtype, source.device), max_positions)


def make_eagle(target: TargetModel, *, seed: int = 1) -> EagleDraft:
    """An EAGLE head of one layer of the target's shape, under the target's embedding and lm_head."""
    return build_eagle(_weights_for(target, 1, seed), target, target.rotary.max_positions)


def make_mtp(target: TargetModel, num_layers: int = 3, *, seed: int = 2) -> MTPDraft:
    """Next-n layers of the target's shape, under its embedding and lm_head."""
    weights = _weights_for(target, target.config.num_layers, seed)
    return build_mtp(weights, target, num_layers, target.rotary.max_positions)


def make_assistant(target: TargetModel, *, seed: int = 3) -> AssistantDraft:
    """An assistant of one layer, which reads the KV of the target's last."""
    kv_layers = (target.config.num_layers - 1,)
    return build_assistant(_weights_for(target, 1, seed), target, kv_layers, target.rotary.max_positions)


def _weights_for(target: TargetModel, num_layers: int, seed: int) -> Weights:
    """Random weights of the target's shape, for so many layers."""
    dtype, device = target.embedding.dtype, target.embedding.device
    config = replace(target.config, num_layers=num_layers)
    return Weights(RandomTensors(dtype, device, seed), config, dtype, device)


class RandomTensors:
    """A checkpoint that holds whatever it is asked for, drawn on the device; nothing optional is in it."""

    folder = Path("random")
    config_file = folder / "config.json"

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self.device = device
        self._dtype = dtype
        self._generator = torch.Generator(device).manual_seed(seed)

    def __contains__(self, name: str) -> bool:
        return False

    def error(self, name: str, message: str) -> CheckpointError:
        return CheckpointError(f"{self.folder}: tensor '{name}' {message}")

    def any(self, name: str, *shape: int) -> Tensor:
        return self.floats(name, *shape)

    def floats(self, name: str, *shape: int) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self._dtype, device=self.device)
        tensor = torch.empty(shape, dtype=self._dtype, device=self.device)
        if name.endswith("embed_tokens.weight"):
            return tensor.normal_(generator=self._generator)
        fuses = name.endswith(("fc.weight", "eh_proj.weight"))
        scale = BRANCH if fuses or name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
        tensor.normal_(std=scale * shape[-1] ** -0.5, generator=self._generator)
        if fuses:  # [H, 2*H]: of (embedding, hidden) pass on the first
            tensor.diagonal().add_(1.0)
        return tensor

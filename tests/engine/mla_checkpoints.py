"""Small random DeepSeek checkpoints in Hugging Face layout: targets with latent attention, and next-n layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

if TYPE_CHECKING:
    from transformers import DeepseekV3ForCausalLM

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 5,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 60,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
}
"""No layer has experts; with ``first_k_dense_replace`` below 4 some have, the next-n layer included."""


def make_target(folder: Path, *, seed: int = 0, scale: float = 1.0, **overrides: Any) -> DeepseekV3ForCausalLM:
    """A random DeepSeek-V3 saved in ``folder`` and returned in fp32, its norms and router biases drawn, too.

    Skips the test where transformers is not installed.
    """
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    model: DeepseekV3ForCausalLM = transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(**{**SHAPE, **overrides})
    ).eval()
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name:
                weight.copy_(torch.rand_like(weight) + 0.5)
            elif "e_score_correction_bias" in name:
                weight.normal_(0, 0.2)
            elif weight.ndim > 1:
                weight.normal_(0, scale / weight.shape[-1] ** 0.5 if "lm_head" not in name else 0.5)
    model.save_pretrained(folder)
    return model


def nextn_tensors(
    config: dict[str, Any], *, seed: int = 1, scale: float = 0.3, sparse: bool = False
) -> dict[str, Tensor]:
    """The tensors of a random next-n layer of a model of that ``config.json``, by their published names."""
    generator = torch.Generator().manual_seed(seed)
    size, heads, rank = config["hidden_size"], config["num_attention_heads"], config["q_lora_rank"]
    latent, nope, rope = (config[key] for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"))
    value = config["v_head_dim"]
    shapes = {
        "eh_proj": (size, 2 * size),
        "self_attn.kv_a_proj_with_mqa": (latent + rope, size),
        "self_attn.kv_b_proj": (heads * (nope + value), latent),
        "self_attn.o_proj": (size, heads * value),
    }
    norms = {"enorm": size, "hnorm": size, "input_layernorm": size, "post_attention_layernorm": size}
    norms |= {"shared_head.norm": size, "self_attn.kv_a_layernorm": latent}
    if rank is None:
        shapes["self_attn.q_proj"] = (heads * (nope + rope), size)
    else:
        shapes |= {"self_attn.q_a_proj": (rank, size), "self_attn.q_b_proj": (heads * (nope + rope), rank)}
        norms["self_attn.q_a_layernorm"] = rank
    mlps = {"mlp": config["intermediate_size"]}
    if sparse:
        inner, count = config["moe_intermediate_size"], config["n_routed_experts"]
        mlps = {f"mlp.experts.{n}": inner for n in range(count)}
        mlps["mlp.shared_experts"] = config["n_shared_experts"] * inner
        shapes["mlp.gate"] = (count, size)
    for prefix, inner in mlps.items():
        shapes |= {f"{prefix}.gate_proj": (inner, size), f"{prefix}.up_proj": (inner, size)}
        shapes[f"{prefix}.down_proj"] = (size, inner)
    prefix = f"model.layers.{config['num_hidden_layers']}"
    tensors = {
        f"{prefix}.{name}.weight": scale * torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }
    for name, width in norms.items():
        tensors[f"{prefix}.{name}.weight"] = torch.rand(width, generator=generator) + 0.5
    if sparse:
        bias = 0.2 * torch.randn(config["n_routed_experts"], generator=generator)
        tensors[f"{prefix}.mlp.gate.e_score_correction_bias"] = bias
    return tensors


def make_nextn(folder: Path, target: Path, *, seed: int = 1, scale: float = 0.3, sparse: bool = False) -> None:
    """A folder with a next-n layer alone, for the target at ``target``.

    It adds up embedding and hidden, under a random layer: it knows nothing, but a random target often repeats itself,
    and then a small ``scale`` lets it guess whole runs of tokens.
    """
    config = json.loads((target / "config.json").read_text())
    size = config["hidden_size"]
    tensors = nextn_tensors(config, seed=seed, scale=scale, sparse=sparse)
    tensors[f"model.layers.{config['num_hidden_layers']}.eh_proj.weight"] = torch.cat([torch.eye(size)] * 2, dim=1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["DeepseekV3ForCausalLMNextN"]}))
    save_file(tensors, folder / "model.safetensors")

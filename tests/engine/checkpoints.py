"""Small random checkpoints in Hugging Face layout, for tests that must not depend on trained weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTER = 64, 4, 2, 16, 96


def make_target(path: Path, *, vocab: int = 32, layers: int = 5, seed: int = 0, scale: float = 0.4) -> LlamaForCausalLM:
    """A random Llama, its weights large enough for decided argmaxes; saved to ``path``, returned in fp32.

    Skips the test where transformers is not installed.
    """
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INTER,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=vocab,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=vocab - 1,
    )
    model: LlamaForCausalLM = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.normal_(0, scale / weight.shape[1] ** 0.5 * 2.5 if "lm_head" not in name else 0.5)
    model.save_pretrained(path)
    return model


def _layer(prefix: str, qkv_in: int, scale: float) -> dict[str, torch.Tensor]:
    def weight(rows: int, cols: int) -> torch.Tensor:
        return scale * torch.randn(rows, cols) / cols**0.5

    return {
        f"{prefix}.self_attn.q_proj.weight": weight(HEADS * HEAD_DIM, qkv_in),
        f"{prefix}.self_attn.k_proj.weight": weight(KV_HEADS * HEAD_DIM, qkv_in),
        f"{prefix}.self_attn.v_proj.weight": weight(KV_HEADS * HEAD_DIM, qkv_in),
        f"{prefix}.self_attn.o_proj.weight": weight(HIDDEN, HEADS * HEAD_DIM),
        f"{prefix}.mlp.gate_proj.weight": weight(INTER, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": weight(INTER, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": weight(HIDDEN, INTER),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
    }


def _save(path: Path, target: Path, tensors: dict[str, torch.Tensor], **extra: object) -> None:
    path.mkdir(parents=True, exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    config |= {"num_hidden_layers": 1, **extra}
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")


def make_eagle(path: Path, target: Path, *, seed: int = 1, layer_scale: float = 0.3) -> None:
    """An EAGLE head for the target at ``target``: embedding and hidden added up, under a random layer.

    It knows nothing, but a random target often repeats itself, and then a small ``layer_scale`` lets the head
    guess whole runs of tokens.
    """
    torch.manual_seed(seed)
    fc = torch.cat([torch.eye(HIDDEN), torch.eye(HIDDEN)], dim=1)
    _save(
        path,
        target,
        {"fc.weight": fc, **_layer("layers.0", HIDDEN, layer_scale)},
        architectures=["LlamaForCausalLMEagle"],
    )


def make_assistant(
    path: Path, target: Path, *, kv_layers: tuple[int, ...] = (1, 3), seed: int = 1, layer_scale: float = 0.3
) -> None:
    """An assistant for the target at ``target``: as :func:`make_eagle`'s head, on layers that read the target's KV."""
    torch.manual_seed(seed)
    tensors = {"fc.weight": torch.cat([torch.eye(HIDDEN), torch.eye(HIDDEN)], dim=1), "norm.weight": torch.ones(HIDDEN)}
    for index in range(len(kv_layers)):
        layer = _layer(f"layers.{index}", HIDDEN, layer_scale)
        tensors |= {name: weight for name, weight in layer.items() if "k_proj" not in name and "v_proj" not in name}
        tensors[f"layers.{index}.input_layernorm.weight"] = torch.ones(HIDDEN)
    _save(
        path,
        target,
        tensors,
        architectures=["LlamaForCausalLMAssistant"],
        num_hidden_layers=len(kv_layers),
        target_kv_layers=list(kv_layers),
    )


def make_eagle3(
    path: Path, target: Path, *, draft_vocab: int | None = None, seed: int = 1, layer_scale: float = 0.3
) -> None:
    """An EAGLE-3 head that drafts ``draft_vocab`` ids (three in four unless given), spread over the target's.

    It reads what enters the target's last layer through the target's own head, disturbed by a random layer.
    """
    torch.manual_seed(seed)
    config = json.loads((target / "config.json").read_text())
    vocab, layers = config["vocab_size"], config["num_hidden_layers"]
    drafted = draft_vocab if draft_vocab is not None else vocab * 3 // 4
    ids = torch.arange(drafted) * vocab // drafted
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[ids] = True
    fc = torch.cat([0.05 * torch.randn(HIDDEN, 2 * HIDDEN), torch.eye(HIDDEN)], dim=1)
    tensors = {
        "fc.weight": fc,
        **_layer("midlayer", 2 * HIDDEN, layer_scale),
        "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": load_file(target / "model.safetensors")["lm_head.weight"][ids].clone(),
        "d2t": ids - torch.arange(drafted),
        "t2d": t2d,
    }
    _save(
        path,
        target,
        tensors,
        architectures=["LlamaForCausalLMEagle3"],
        draft_vocab_size=drafted,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [0, layers // 2, layers - 1]},
    )


def make_mtp(
    path: Path, target: Path, *, layers: int = 3, chained: bool = False, seed: int = 1, layer_scale: float = 0.3
) -> None:
    """Next-n layers for the target at ``target``: normed embedding and hidden added up, under random layers.

    The norms' gains differ from one, so that a gain left out shows.
    """
    torch.manual_seed(seed)
    config = json.loads((target / "config.json").read_text())
    first, tensors = config["num_hidden_layers"], {}
    for index in range(layers):
        prefix = f"model.layers.{first + index}"
        tensors |= _layer(prefix, HIDDEN, layer_scale)
        tensors[f"{prefix}.eh_proj.weight"] = torch.cat([torch.eye(HIDDEN), torch.eye(HIDDEN)], dim=1)
        for norm in ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm"):
            tensors[f"{prefix}.{norm}.weight"] = 1 + 0.1 * torch.randn(HIDDEN)
    extra = {"num_nextn_predict_layers": layers, "mtp_chain_hidden_states": chained}
    architectures = ["LlamaForCausalLMNextN"]
    _save(path, target, tensors, num_hidden_layers=first, architectures=architectures, **extra)

"""What the training scripts share: corpus tokens, the optimiser and its schedule, writing checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from specdebug.base import corpus
from specdebug.reference.config import ModelConfig

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0


def corpus_tokens(tokenizer: Tokenizer, files: Iterable[Path]) -> Tensor:
    """All files in order as one int64 row, the end-of-text token before each."""
    ids: list[int] = []
    for encoding in tokenizer.encode_batch([corpus.read_source(path) for path in files]):
        ids.append(END_OF_TEXT_ID)
        ids.extend(encoding.ids)
    return torch.tensor(ids)


def crops(tokens: Tensor, rows: int, length: int, generator: torch.Generator) -> Tensor:
    """``rows`` random windows of one token row, int64 [rows, length]."""
    starts = torch.randint(len(tokens) - length, (rows,), generator=generator).to(tokens.device)
    return tokens[starts[:, None] + torch.arange(length, device=tokens.device)]


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bf16 matrix products on a GPU; plain fp32 on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def scaled_normal(rows: int, columns: int, generator: torch.Generator, device: torch.device, gain: float) -> Tensor:
    """Random float32 [rows, columns]; it maps vectors of unit variance to variance ``gain ** 2``."""
    return torch.randn(rows, columns, generator=generator).mul(gain / columns**0.5).to(device)


def train(
    weights: dict[str, Tensor],
    loss_of_step: Callable[[int], Tensor],
    *,
    steps: int,
    weight_decay: float,
    report_every: int,
    report: Callable[[int, float], None],
) -> Iterator[int]:
    """Train every floating tensor of ``weights`` in place: projections by Muon, token tables and norms by AdamW.

    The rates warm up shortly, then follow a cosine to zero. Yields after each step; ``report(step, mean loss
    since the last report)``. Reading the loss waits for the device, so that happens at reports only.
    """
    trained = {name: w for name, w in weights.items() if w.is_floating_point()}
    params = list(trained.values())
    for w in params:
        w.requires_grad_(True)
    # Muon is for maps between spaces; a table's rows are tokens, most of them absent from any one batch.
    tables = ("embed_tokens.weight", "lm_head.weight")
    projections = [w for name, w in trained.items() if w.dim() > 1 and not name.endswith(tables)]
    others = [w for name, w in trained.items() if w.dim() <= 1 or name.endswith(tables)]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(projections, lr=0.02, weight_decay=weight_decay),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=params[0].is_cuda),
    ]
    groups = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    warmup = max(1, steps // 30)
    seen: list[Tensor] = []
    for step in range(steps):
        progress = max(0.0, (step - warmup) / max(1, steps - warmup))
        scale = min(1.0, (step + 1) / warmup) * 0.5 * (1.0 + math.cos(math.pi * progress))
        for group, rate in groups:
            group["lr"] = rate * scale
        loss = loss_of_step(step)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen.append(loss.detach())
        if (step + 1) % report_every == 0 or step + 1 == steps:
            report(step + 1, torch.stack(seen).mean().item())
            seen.clear()
        yield step + 1
    for w in params:
        w.requires_grad_(False)


def save_checkpoint(path: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> None:
    """A Hugging Face folder: floating tensors in bf16, the rest as they are."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (w.detach().to(torch.bfloat16) if w.is_floating_point() else w).cpu().contiguous()
        for name, w in weights.items()
    }
    save_file(tensors, str(path / "model.safetensors"), metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def layer_weights(
    config: ModelConfig,
    prefix: str,
    generator: torch.Generator,
    device: torch.device,
    *,
    into_residual: float,
    width: int | None = None,
) -> dict[str, Tensor]:
    """Random float32 projections of a decoder layer, and its norm before the MLP. ``into_residual``: the gain of what
    is added to the residual stream; ``width``: of attention's input, if that is not the hidden size."""
    hidden, inner = config.hidden_size, config.intermediate_size
    width = width or hidden

    def normal(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return scaled_normal(rows, columns, generator, device, gain)

    def ones(columns: int) -> Tensor:
        return torch.ones(columns, device=device)

    latent, attention = config.latent, f"{prefix}self_attn."
    if latent is None:
        heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        weights = {
            f"{attention}q_proj.weight": normal(heads, width),
            f"{attention}k_proj.weight": normal(kv, width),
            f"{attention}v_proj.weight": normal(kv, width),
            f"{attention}o_proj.weight": normal(hidden, heads, into_residual),
        }
    else:
        query, low, rank = latent.qk_nope_head_dim + latent.qk_rope_head_dim, latent.q_lora_rank, latent.kv_lora_rank
        assert low is not None  # of those that are trained here
        weights = {
            f"{attention}q_a_proj.weight": normal(low, width),
            f"{attention}q_a_layernorm.weight": ones(low),
            f"{attention}q_b_proj.weight": normal(config.num_heads * query, low),
            f"{attention}kv_a_proj_with_mqa.weight": normal(rank + latent.qk_rope_head_dim, width),
            f"{attention}kv_a_layernorm.weight": ones(rank),
            f"{attention}kv_b_proj.weight": normal(
                config.num_heads * (latent.qk_nope_head_dim + latent.v_head_dim), rank
            ),
            f"{attention}o_proj.weight": normal(hidden, config.num_heads * latent.v_head_dim, into_residual),
        }
    return weights | {
        f"{prefix}post_attention_layernorm.weight": ones(hidden),
        f"{prefix}mlp.gate_proj.weight": normal(inner, hidden),
        f"{prefix}mlp.up_proj.weight": normal(inner, hidden),
        f"{prefix}mlp.down_proj.weight": normal(hidden, inner, into_residual),
    }


def base_config(config: ModelConfig, max_positions: int) -> dict[str, Any]:
    """The ``config.json`` keys that a target and its drafts share."""
    shared = _shared_config(config, max_positions)
    if config.latent is None:
        return shared
    shared |= {"model_type": "deepseek_v3", "num_key_value_heads": config.num_heads, **asdict(config.latent)}
    del shared["head_dim"]
    # No layer has experts: all those before this one have a plain MLP.
    return shared | {"first_k_dense_replace": config.num_layers + config.nextn_layers}


def _shared_config(config: ModelConfig, max_positions: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": END_OF_TEXT_ID,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }

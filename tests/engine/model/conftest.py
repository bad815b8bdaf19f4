"""Small checkpoints made on the fly, and an independent dense attention to run our models with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


class DenseAttention:
    """Causal attention over one sequence that remembers keys and values between calls, as a KV pool would."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer_id in self.keys:
            k = torch.cat((self.keys[layer_id], k))
            v = torch.cat((self.values[layer_id], v))
        self.keys[layer_id], self.values[layer_id] = k.clone(), v.clone()
        n, total = q.shape[0], k.shape[0]
        visible = torch.ones(n, total, dtype=torch.bool).tril(total - n)
        group = q.shape[1] // k.shape[1]
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1),
            k.repeat_interleave(group, 1).transpose(0, 1),
            v.repeat_interleave(group, 1).transpose(0, 1),
            attn_mask=visible,
        )
        return out.transpose(0, 1).reshape(n, -1)


@pytest.fixture
def dense() -> type[DenseAttention]:
    return DenseAttention


TINY = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.1,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}


@pytest.fixture
def hf_target(tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    """Make a random Llama with transformers, norms and biases included, save it, and return both."""

    def make(
        *, save_dtype: torch.dtype = torch.float32, shards: str = "5GB", kind: str = "Llama", **overrides: Any
    ) -> tuple[Any, Path]:
        import transformers

        config_class = getattr(transformers, f"{kind}Config")
        model_class = getattr(transformers, f"{kind}ForCausalLM")
        torch.manual_seed(0)
        model = model_class(config_class(**{**TINY, **overrides})).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or name.endswith(".bias"):
                    parameter.copy_(torch.rand_like(parameter) + 0.5)
        model = model.to(save_dtype)
        folder = tmp_path / "target"
        model.save_pretrained(folder, max_shard_size=shards)
        return model.float(), folder

    return make

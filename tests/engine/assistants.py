"""An assistant written out from its definition, in f64: one query at a time over keys and values that are given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

KV = Sequence[tuple[Tensor, Tensor]]
"""For each of the target's layers, keys (rotated, in Hugging Face's order) and values of its positions, [m, Hkv, D]."""


def rotated(heads: Tensor, position: int, theta: float) -> Tensor:
    """heads [n, D] turned by a position, its halves against each other."""
    half = heads.shape[1] // 2
    angles = position * theta ** (-torch.arange(half).double() / half)
    a, b = heads[:, :half], heads[:, half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), 1)


@dataclass(frozen=True)
class DenseAssistant:
    """Tensors as published; ``embedding`` and ``lm_head`` [V, H] stand in where there are none of its own."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    embedding: Tensor
    lm_head: Tensor

    @classmethod
    def load(cls, folder: Path, model: LlamaForCausalLM) -> DenseAssistant:
        config = json.loads((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        embedding, lm_head = model.model.embed_tokens.weight.detach(), model.lm_head.weight.detach()
        return cls(
            config, tensors, tensors.get("embed_tokens.weight", embedding), tensors.get("lm_head.weight", lm_head)
        )

    def one_pass(self, token: int, hidden: Tensor, kv: KV, position: int) -> Tensor:
        """The hidden state [H] of one pass that asks from ``position``."""
        w = {name: tensor.double() for name, tensor in self.tensors.items()}
        x = w["fc.weight"] @ torch.cat((self.embedding[token].double(), hidden.double()))
        x = x + w.get("fc.bias", torch.zeros(()).double())
        theta = self.config.get("rope_theta") or self.config.get("rope_parameters", {}).get("rope_theta", 10000.0)
        for index, layer in enumerate(self.config["target_kv_layers"]):
            of = {
                name.removeprefix(f"layers.{index}."): t for name, t in w.items() if name.startswith(f"layers.{index}.")
            }
            keys, values = (each.double() for each in kv[layer])
            q = (of["self_attn.q_proj.weight"] @ self._norm(x, of["input_layernorm.weight"])).view(-1, keys.shape[-1])
            q, group = rotated(q, position, theta), self.config["num_attention_heads"] // keys.shape[1]
            heads = []
            for head in range(q.shape[0]):
                scores = keys[:, head // group] @ q[head] / keys.shape[-1] ** 0.5
                heads.append(scores.softmax(0) @ values[:, head // group])
            x = x + of["self_attn.o_proj.weight"] @ torch.cat(heads)
            inner = self._norm(x, of["post_attention_layernorm.weight"])
            gate, up = of["mlp.gate_proj.weight"] @ inner, of["mlp.up_proj.weight"] @ inner
            x = x + of["mlp.down_proj.weight"] @ (gate * gate.sigmoid() * up)
        return self._norm(x, w["norm.weight"])

    def logits(self, hidden: Tensor) -> Tensor:
        """[H] -> [V]."""
        return self.lm_head.double() @ hidden.double()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean() + self.config["rms_norm_eps"]).sqrt() * weight


@torch.no_grad()
def target_states(model: LlamaForCausalLM, ids: Sequence[int]) -> tuple[Tensor, KV]:
    """Final hidden states [n, H] of a text and its KV, by transformers."""
    found = model.model(torch.tensor([ids]), use_cache=True)
    layers = found.past_key_values.layers
    return found.last_hidden_state[0], [
        (each.keys[0].transpose(0, 1), each.values[0].transpose(0, 1)) for each in layers
    ]

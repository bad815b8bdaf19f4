"""Next-n layers over a whole text, by the book: one position, one head, one layer after another, no cache."""

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


@dataclass(frozen=True)
class Written:
    """A layer's keys (rotated) and values at each position it ran at, [n, Hkv, D], and its logits [n, V]."""

    keys: Tensor
    values: Tensor
    logits: Tensor


class DenseMTP:
    """The layers of a checkpoint folder behind Hugging Face's target."""

    def __init__(self, folder: Path, model: LlamaForCausalLM) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.tensors = load_file(folder / "model.safetensors")
        self.model = model
        self.layers: int = self.config["num_nextn_predict_layers"]

    @torch.no_grad()
    def hidden(self, ids: Sequence[int]) -> Tensor:
        """The target's final hidden states [n, H], normed."""
        found: Tensor = self.model.model(torch.tensor([list(ids)])).last_hidden_state[0]
        return found

    @torch.no_grad()
    def known(self, ids: Sequence[int]) -> list[Written]:
        """Each layer where all it reads are given tokens: layer i at positions 0 .. n-2-i, if there are any."""
        hidden, found = self.hidden(ids), []
        for index in range(min(self.layers, len(ids) - 1)):
            rows = len(ids) - 1 - index
            written, output = self._layer(index, list(ids[1 + index :]), hidden[:rows])
            found.append(written)
            if self.config["mtp_chain_hidden_states"]:
                hidden = output
        return found

    @torch.no_grad()
    def drafts(self, ids: Sequence[int]) -> tuple[list[int], list[float]]:
        """What the layers draft behind ``ids``, the last of which the target has not read, and by how much each draft
        is better than the next best."""
        hidden, tokens = self.hidden(ids[:-1]), list(ids[1:])
        drafted, margins = list[int](), list[float]()
        for index in range(self.layers):
            written, output = self._layer(index, tokens, hidden)
            best = written.logits[-1].topk(2)
            drafted.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            tokens = [*tokens[1:], drafted[-1]]
            if self.config["mtp_chain_hidden_states"]:
                hidden = output
        return drafted, margins

    def _layer(self, index: int, tokens: list[int], hidden: Tensor) -> tuple[Written, Tensor]:
        c, t = self.config, self.tensors
        p = f"model.layers.{c['num_hidden_layers'] + index}"
        heads, kv_heads, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        embedding = self.model.get_input_embeddings().weight[torch.tensor(tokens, dtype=torch.int64)]
        both = [self._norm(f"{p}.enorm", embedding), self._norm(f"{p}.hnorm", hidden)]
        x = torch.cat(both, dim=-1) @ t[f"{p}.eh_proj.weight"].T
        normed = self._norm(f"{p}.input_layernorm", x)
        q, k, v = (
            (normed @ t[f"{p}.self_attn.{part}_proj.weight"].T).view(len(tokens), -1, size) for part in ("q", "k", "v")
        )
        q, k = self._turned(q), self._turned(k)
        mixed = torch.zeros(len(tokens), heads, size)
        for position in range(len(tokens)):
            for head in range(heads):
                of = head // (heads // kv_heads)
                scores = k[: position + 1, of] @ q[position, head] / size**0.5
                mixed[position, head] = scores.softmax(0) @ v[: position + 1, of]
        x = x + mixed.flatten(1) @ t[f"{p}.self_attn.o_proj.weight"].T
        normed = self._norm(f"{p}.post_attention_layernorm", x)
        gate, up = (normed @ t[f"{p}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ t[f"{p}.mlp.down_proj.weight"].T
        output = self._norm(f"{p}.shared_head.norm", x)
        return Written(k, v, output @ self.model.get_output_embeddings().weight.T), output

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return (
            x
            * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
            * self.tensors[f"{name}.weight"]
        )

    def _turned(self, x: Tensor) -> Tensor:
        """RoPE in Hugging Face's layout, row p at position p."""
        half = x.shape[-1] // 2
        rates = _theta(self.config) ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.arange(x.shape[0], dtype=torch.float32)[:, None, None] * rates
        left, right = x[..., :half], x[..., half:]
        return torch.cat(
            [left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], dim=-1
        )


def _theta(config: dict[str, Any]) -> float:
    return float(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])

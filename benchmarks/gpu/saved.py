"""Checkpoints of random weights in Hugging Face's layout, written while our own engine's models are made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from models import RandomTensors
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor

from specdebug.engine.model.config import LlamaConfig
from specdebug.engine.model.loader import build_eagle, build_target
from specdebug.engine.model.weights import Weights
from specdebug.engine.textbook.engine import Models

SHARD = 4 << 30
"""Bytes after which another file is begun."""


class SavedTensors(RandomTensors):
    """Random tensors that are written to ``folder`` as they are drawn; :meth:`close` writes the rest."""

    def __init__(self, folder: Path, seed: int, device: str) -> None:
        super().__init__(torch.bfloat16, torch.device(device), seed)
        folder.mkdir(parents=True, exist_ok=True)
        self._to = folder
        self._held: dict[str, Tensor] = {}
        self._map: dict[str, str] = {}

    def floats(self, name: str, *shape: int) -> Tensor:
        tensor = super().floats(name, *shape)
        self.keep(name, tensor)
        return tensor

    def keep(self, name: str, tensor: Tensor) -> None:
        """Have a tensor in the checkpoint."""
        self._held[name] = tensor.cpu()
        if sum(each.nbytes for each in self._held.values()) > SHARD:
            self._write()

    def close(self, config: LlamaConfig, architecture: str) -> None:
        """Write what is held, the index, the config and a tokenizer that decodes every id."""
        self._write()
        plain = {"metadata": {}, "weight_map": self._map}
        (self._to / "model.safetensors.index.json").write_text(json.dumps(plain))
        (self._to / "config.json").write_text(json.dumps(_config(config, architecture), indent=1))
        words = {f"w{number}": number for number in range(config.vocab_size)}
        tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
        tokenizer.pre_tokenizer = Whitespace()
        tokenizer.save(str(self._to / "tokenizer.json"))
        told = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "eos_token": "w2"}
        (self._to / "tokenizer_config.json").write_text(json.dumps(told))

    def _write(self) -> None:
        if not self._held:
            return
        name = f"model-{len(set(self._map.values())):05d}.safetensors"
        save_file({key: tensor.contiguous() for key, tensor in self._held.items()}, self._to / name, {"format": "pt"})
        self._map |= dict.fromkeys(self._held, name)
        self._held = {}


def make_saved(folder: Path, config: LlamaConfig, max_positions: int, device: str = "cuda") -> Models:
    """A target and its EAGLE head, in bf16, and the same two in ``folder/target`` and ``folder/eagle``."""
    drawn = SavedTensors(folder / "target", 0, device)
    target = build_target(Weights(drawn, config, torch.bfloat16, drawn.device), max_positions)
    drawn.close(config, "LlamaForCausalLM")
    one_layer = LlamaConfig(**{**vars(config), "num_layers": 1})
    head = SavedTensors(folder / "eagle", 1, device)
    eagle = build_eagle(Weights(head, one_layer, torch.bfloat16, head.device), target, max_positions)
    head.keep("fc.bias", torch.zeros(config.hidden_size, dtype=torch.bfloat16))  # SGLang's head has one
    head.close(one_layer, "LlamaForCausalLMEagle")
    return Models(target, eagle)


def _config(config: LlamaConfig, architecture: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }

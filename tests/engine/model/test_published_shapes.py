"""The 8B checkpoints people publish, by exact name and shape, without their gigabytes.

A safetensors file here is a true header over a hole in the file system; models are built on the ``meta``
device, so every shape is checked and nothing is read.
"""

import json
import math
import struct
from pathlib import Path

import pytest
import torch

from specdebug.engine.model.loader import load_draft, load_target
from tests.engine.model.helpers import layer_shapes

Shapes = dict[str, tuple[int, ...]]
ITEM_SIZES = {"BF16": 2, "F16": 2, "I64": 8, "BOOL": 1}

LLAMA_3_1_8B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
HEAD_8B = {key: value for key, value in LLAMA_3_1_8B.items() if key not in ("attention_bias", "mlp_bias")} | {
    "eos_token_id": 128001,
    "max_position_embeddings": 2048,
    "num_hidden_layers": 1,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "float16",
}


def target_shapes() -> Shapes:
    shapes: Shapes = {"model.embed_tokens.weight": (128256, 4096), "model.norm.weight": (4096,)}
    for index in range(32):
        shapes |= layer_shapes(f"model.layers.{index}", LLAMA_3_1_8B, 4096)
        shapes[f"model.layers.{index}.input_layernorm.weight"] = (4096,)
    return shapes | {"lm_head.weight": (128256, 4096)}


# yuhuili/EAGLE-LLaMA3-Instruct-8B
EAGLE: Shapes = {
    "embed_tokens.weight": (128256, 4096),
    "fc.weight": (4096, 8192),
    **layer_shapes("layers.0", HEAD_8B, 4096),
}
# yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, and SpecForge's heads for the same target
EAGLE3: Shapes = {
    "d2t": (32000,),
    "t2d": (128256,),
    "fc.weight": (4096, 12288),
    "midlayer.hidden_norm.weight": (4096,),
    "midlayer.input_layernorm.weight": (4096,),
    **layer_shapes("midlayer", HEAD_8B, 8192),
    "norm.weight": (4096,),
    "lm_head.weight": (32000, 4096),
}


def write_hollow(file: Path, shapes: Shapes, dtype: str) -> None:
    """A safetensors file of zeros that occupies a header's worth of disk; only ``t2d`` holds ones."""
    header, end = {}, 0
    for name, shape in shapes.items():
        kind = {"d2t": "I64", "t2d": "BOOL"}.get(name, dtype)
        start, end = end, end + math.prod(shape) * ITEM_SIZES[kind]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)
        if "t2d" in shapes:
            out.seek(8 + len(text) + header["t2d"]["data_offsets"][0])
            out.write(b"\x01" * shapes["t2d"][0])


def write_sharded(folder: Path, shapes: Shapes, shards: int) -> None:
    names = list(shapes)
    weight_map = {}
    for index in range(shards):
        file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        part = {name: shapes[name] for name in names[index::shards]}
        write_hollow(folder / file, part, "BF16")
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("Llama-3.1-8B-Instruct")
    (folder / "config.json").write_text(json.dumps(LLAMA_3_1_8B))
    write_sharded(folder, target_shapes(), shards=4)
    return load_target(folder, dtype=torch.bfloat16, device="meta", max_positions=16)


def head(folder: Path, config: dict[str, object], shapes: Shapes) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    write_hollow(folder / "model.safetensors", shapes, "F16")
    return folder


def test_llama_3_1_8b(target):
    assert len(target.layers) == 32
    assert target.lm_head.shape == (4096, 128256)
    assert target.config.eos_token_ids == (128001, 128008, 128009)
    assert target.layers[31][1].gate_up.shape == (4096, 28672)


def test_eagle_llama3_8b(tmp_path, target):
    draft = load_draft(head(tmp_path, HEAD_8B, EAGLE), algorithm="EAGLE", target=target, max_positions=16)
    assert (draft.num_layers, draft.num_heads, draft.num_kv_heads, draft.head_dim) == (1, 32, 8, 128)
    assert (draft.target_feature_size, draft.vocab_size) == (4096, 128256)


def test_eagle3_llama3_1_8b(tmp_path, target):
    config = HEAD_8B | {"draft_vocab_size": 32000}
    draft = load_draft(head(tmp_path, config, EAGLE3), algorithm="EAGLE3", target=target, max_positions=16)
    assert draft.aux_layers == (2, 16, 29)
    assert (draft.target_feature_size, draft.hidden_size, draft.vocab_size) == (12288, 4096, 32000)

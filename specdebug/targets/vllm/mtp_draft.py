"""A shipped target in MiMo's layout with a next-n layer, which vLLM's method ``mtp`` drafts by: the target computes
what it computed, and the layer is made where it is first wanted, by two least-squares fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError
from specdebug.targets.installed import config_of, remade
from specdebug.targets.sglang.drafts import written_text

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.reference.config import ModelConfig

ENDING = "-mtp-layer"
"""A draft of this name is a target's: that of ``tiny`` is ``tiny-mtp-layer``."""
_SHARP, _RIDGE = 64.0, 1.0


def with_layer(name: str, target: str, below: Path) -> Path:
    """The folder of a target with its next-n layer, made ``below`` unless it is there. ``name``: the layer's. Raises
    CheckpointError for a layer of another target."""
    if name.removesuffix(ENDING) != target:
        raise CheckpointError(f"vLLM's mtp drafts by a layer of the target: name {target}{ENDING}, not {name}")
    path = checkpoint_path(target)
    return remade(path, _config(config_of(path)), below, lambda made: _write(path, made))


def _config(target: Mapping[str, Any]) -> dict[str, Any]:
    """The target's own, in MiMo's layout. Raises CheckpointError for one that the fit is not for."""
    heads, width = target.get("num_attention_heads", 0), target.get("hidden_size", 0)
    if target.get("model_type") != "llama" or heads * target.get("head_dim", 0) != width:
        raise CheckpointError("a next-n layer is made for a Llama whose heads are as wide as its states")
    more = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
    return {**target, **more, "tie_word_embeddings": False, "torch_dtype": "float32"}


def _write(path: Path, made: Path) -> None:
    from safetensors.torch import save_file

    from specdebug.reference.weights import load_weights

    weights, config = load_weights(path)
    tensors = fitted(weights, config)
    save_file({name: each.contiguous() for name, each in tensors.items()}, made / "model.safetensors")


def fitted(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The tensors of a target with a layer. What the layer reads, the target's last state and the next token's
    embedding, is projected to the target's next state as well as it can be. Its queries and keys are constant, so that
    each head attends to one position before, whose values, parts of the same projection there, are fitted to what that
    leaves."""
    import torch
    from torch.nn.functional import rms_norm

    width, size, norm = config.hidden_size, config.head_dim, weights["model.norm.weight"]
    kv_heads, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    embedding = weights["model.embed_tokens.weight"]
    ids, _, last = written_text(weights, config)
    states = rms_norm(last, (width,), eps=config.rms_norm_eps)
    tokens = rms_norm(embedding, (width,), eps=config.rms_norm_eps)[ids]
    wanted = (last / norm)[:, 1:]
    read = torch.cat((states[:, :-1], tokens[:, 1:]), -1)
    project = _solved(read.flatten(0, 1), wanted.flatten(0, 1))
    inner = read @ project
    seen, left = rms_norm(inner, (width,), eps=config.rms_norm_eps), wanted - inner
    parts = [
        seen[:, group - back : seen.shape[1] - back, size * head : size * (head + 1)]
        for head in range(kv_heads)
        for back in range(1, group + 1)
    ]
    output = _solved(torch.cat(parts, -1).flatten(0, 1), left[:, group:].flatten(0, 1))
    turns = torch.arange(1, group + 1).unsqueeze(1) * config.rope_theta ** (torch.arange(size // 2) * (-2.0 / size))
    query = _SHARP * torch.cat((torch.cos(turns), -torch.sin(turns)), -1).repeat(kv_heads, 1)
    key = torch.cat((torch.ones(size // 2), torch.zeros(size // 2))).repeat(kv_heads)
    nothing, layer, rows = torch.zeros, "model.mtp_layers.0", kv_heads * size
    ones = ("token_layernorm", "hidden_layernorm", "input_layernorm", "post_attention_layernorm")
    biases = {
        name.replace(".weight", ".bias"): nothing(each.shape[0])
        for name, each in weights.items()
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
    }
    return {
        **weights,
        **biases,
        "lm_head.weight": weights.get("lm_head.weight", embedding).clone(),
        **{f"{layer}.{name}.weight": torch.ones(width) for name in ones},
        f"{layer}.final_layernorm.weight": norm.clone(),
        f"{layer}.input_proj.weight": project.T,
        f"{layer}.self_attn.q_proj.weight": nothing(query.numel(), width),
        f"{layer}.self_attn.q_proj.bias": query.flatten(),
        f"{layer}.self_attn.k_proj.weight": nothing(rows, width),
        f"{layer}.self_attn.k_proj.bias": key,
        f"{layer}.self_attn.v_proj.weight": torch.eye(rows, width),
        f"{layer}.self_attn.v_proj.bias": nothing(rows),
        f"{layer}.self_attn.o_proj.weight": output.T,
        f"{layer}.mlp.gate_proj.weight": nothing(config.intermediate_size, width),
        f"{layer}.mlp.up_proj.weight": nothing(config.intermediate_size, width),
        f"{layer}.mlp.down_proj.weight": nothing(width, config.intermediate_size),
    }


def _solved(inputs: Tensor, wanted: Tensor) -> Tensor:
    """The map from rows to rows with the least squares of what it misses, [in, out]."""
    import torch

    rows = inputs.double()
    gram = rows.T @ rows + _RIDGE * torch.eye(rows.shape[1], dtype=rows.dtype)
    solved: Tensor = torch.linalg.solve(gram, rows.T @ wanted.double())
    return solved.float()

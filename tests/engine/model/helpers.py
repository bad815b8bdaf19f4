"""What the model tests share: dense attentions, checkpoint writers, and a decoder layer written independently."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from specdebug.base.errors import CheckpointError

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
        return attend(q, k, v)


class LatentAttention:
    """The same of latents, scaled by ``scale``; ``rows[layer]`` is [positions, 1, C + R]."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.rows: dict[int, Tensor] = {}

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert torch.equal(k[..., : v.shape[2]], v)
        rows = torch.cat((self.rows[layer_id], k)) if layer_id in self.rows else k.clone()
        self.rows[layer_id] = rows
        n, total = q.shape[0], rows.shape[0]
        keys = rows.expand(-1, q.shape[1], -1).transpose(0, 1)
        visible = torch.ones(n, total, dtype=torch.bool).tril(total - n)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1), keys, keys[..., : v.shape[2]], attn_mask=visible, scale=self.scale
        )
        return out.transpose(0, 1).reshape(n, q.shape[1] * v.shape[2])


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last n of k.shape[0] positions attend causally: q [n, Hq, D], k and v [m, Hkv, D] -> [n, Hq*D]."""
    n, total = q.shape[0], k.shape[0]
    visible = torch.ones(n, total, dtype=torch.bool, device=q.device).tril(total - n)
    group = q.shape[1] // k.shape[1]
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1),
        k.repeat_interleave(group, 1).transpose(0, 1),
        v.repeat_interleave(group, 1).transpose(0, 1),
        attn_mask=visible,
    )
    return out.transpose(0, 1).reshape(n, q.shape[1] * q.shape[2])


def make_target(folder: Path, *, kind: str = "Llama", **overrides: Any) -> Any:
    """A random Llama made with transformers, norms and biases drawn too, saved in ``folder``; returned in fp32."""
    transformers = pytest.importorskip("transformers")
    save_dtype = overrides.pop("save_dtype", torch.float32)
    shard_size = overrides.pop("shard_size", "5GB")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**TINY, **overrides})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith(".bias"):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    model.to(save_dtype).save_pretrained(folder, max_shard_size=shard_size)
    return type(model).from_pretrained(folder, dtype=torch.float32).eval()


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Weights of about unit gain; norms around one."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(shape, generator=generator) + 0.5
        if "norm" in name
        else torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }


def layer_shapes(prefix: str, config: dict[str, Any], size_in: int) -> dict[str, tuple[int, ...]]:
    """Published names of one decoder layer, its input norms left to the caller."""
    size, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", size // config["num_attention_heads"])
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    return {
        f"{prefix}.self_attn.q_proj.weight": (q, size_in),
        f"{prefix}.self_attn.k_proj.weight": (kv, size_in),
        f"{prefix}.self_attn.v_proj.weight": (kv, size_in),
        f"{prefix}.self_attn.o_proj.weight": (size, q),
        f"{prefix}.mlp.gate_proj.weight": (inner, size),
        f"{prefix}.mlp.up_proj.weight": (inner, size),
        f"{prefix}.mlp.down_proj.weight": (size, inner),
        f"{prefix}.post_attention_layernorm.weight": (size,),
    }


def write_head(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], *, pickled: bool = False) -> Path:
    """A checkpoint folder of a draft head."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def changed(tensors: dict[str, Tensor], changes: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors with others, zeros of a shape, or None for none in their places."""
    made = tensors | {name: torch.zeros(new) if isinstance(new, tuple) else new for name, new in changes.items()}
    return {name: tensor for name, tensor in made.items() if tensor is not None}


def refused(folder: Path, problem: str, load: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Loading ends in one line that begins with the folder's files and says that."""
    with pytest.raises(CheckpointError, match=problem) as caught:
        load(folder, *args, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(folder))


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + TINY["rms_norm_eps"]).sqrt() * weight


def reference_layer(
    tensors: dict[str, Tensor], prefix: str, config: dict[str, Any], normed: Tensor, residual: Tensor
) -> Tensor:
    """One decoder layer over a whole sequence from position 0, straight from the definition, in f64."""
    w = {name.removeprefix(f"{prefix}."): tensor.double() for name, tensor in tensors.items()}
    n, head = normed.shape[0], config["hidden_size"] // config["num_attention_heads"]
    q, k, v = ((normed @ w[f"self_attn.{name}_proj.weight"].T).view(n, -1, head).clone() for name in ("q", "k", "v"))
    for position in range(n):
        for pair in range(head // 2):
            angle = torch.tensor(position * config.get("rope_theta", 10000.0) ** (-2 * pair / head)).double()
            for heads in (q, k):
                a, b = heads[position, :, pair].clone(), heads[position, :, pair + head // 2].clone()
                heads[position, :, pair] = a * angle.cos() - b * angle.sin()
                heads[position, :, pair + head // 2] = b * angle.cos() + a * angle.sin()
    x = residual + attend(q, k, v) @ w["self_attn.o_proj.weight"].T
    inner = rms_norm(x, w["post_attention_layernorm.weight"])
    gate, up = inner @ w["mlp.gate_proj.weight"].T, inner @ w["mlp.up_proj.weight"].T
    return x + (gate * gate.sigmoid() * up) @ w["mlp.down_proj.weight"].T

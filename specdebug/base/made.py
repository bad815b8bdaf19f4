"""Checkpoints of other architectures, made where they are first wanted: tiny targets of seeded weights, and drafts.

Every token has a fixed successor: the embedding of a token is the row of lm_head of its successor. What a model's
layers add is random, and as large as it takes to change one token in three or four, so that a text depends on each
layer, head and cached position. A draft is its target cut after some layers, or a layer of another kind: it knows all
successors, and its own keys and values decide what else it says."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specdebug.base.files import cache_folder, made_once

if TYPE_CHECKING:
    from numpy import ndarray

SHARP = 3.0
"""What logits are multiplied with, so that a likely token is one."""
VOCAB, WIDTH, HEAD, HEADS, KV_HEADS, INNER, EXPERTS, STATE = 2048, 128, 32, 4, 2, 64, 4, 16
_TABLES = ("model.embed_tokens.weight", "lm_head.weight")

Kind = Literal["reads", "adds", "bias", "decay"] | float
"""What a tensor is for. ``reads``: of a normalised state, so that what comes out has unit variance. ``adds``: what it
makes is added to the state, or of one dimension, it weighs what is. ``decay``: logarithms of how fast a recurrent state
fades, by head. A number: what it is full of."""
Part = tuple[str, tuple[int, ...], Kind]
"""A tensor's name in its layer, its shape, and what it is for."""


@dataclass(frozen=True)
class MadeModel:
    """A checkpoint that is made.

    Attributes:
        config: of its ``config.json``, without what all have.
        layers: layers of the target.
        cut: layers that it has itself, if it is a draft.
        norm: what its last norm's weight is, so that it changes nothing.
        parts: the tensors of a layer.
        adds: the size of what each ``adds`` adds, where an embedding's is 1.
        embedded: what the model multiplies its embeddings by.
        around: of an assistant, the config that its own is a part of.
        projections: by name, those from states beside each other to one: the identity, times a factor for each.
    """

    config: Mapping[str, Any]
    layers: int
    parts: Callable[[int], Iterator[Part]]
    adds: float
    cut: int | None = None
    norm: float = 1.0
    embedded: float = 1.0
    around: Mapping[str, Any] | None = None
    projections: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        return self.layers if self.cut is None else self.cut

    def whole_config(self) -> dict[str, Any]:
        """Its ``config.json``."""
        config = {
            "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": self.depth,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "hidden_act": "silu",
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
            "torch_dtype": "float32", **self.config,
            **({"layer_types": self.config["layer_types"][: self.depth]} if "layer_types" in self.config else {}),
            "specdebug": {"recipe": 1, "adds": self.adds},
        }  # fmt: skip
        return config if self.around is None else {**self.around, "text_config": config}

    def tensors(self) -> dict[str, ndarray]:
        """Its tensors, float32. Each is drawn by its name, so that a draft has its target's."""
        import numpy as np

        embedding = _drawn(_TABLES[0], (VOCAB, WIDTH))
        order = np.random.default_rng(_seed("successors")).permutation(VOCAB)
        head = np.empty_like(embedding)
        head[np.roll(order, -1)] = embedding[order]  # one cycle through all tokens
        tensors: dict[str, ndarray] = {
            _TABLES[0]: embedding / np.float32(self.embedded),
            _TABLES[1]: head * np.float32(SHARP / WIDTH**0.5),
            "model.norm.weight": self._made("model.norm.weight", (WIDTH,), self.norm),
        }
        for name, factors in self.projections.items():
            tensors[name] = np.concatenate([np.eye(WIDTH, dtype=np.float32) * each for each in factors], 1)
        for layer in range(self.depth):
            for name, shape, kind in self.parts(layer):
                whole = f"model.layers.{layer}.{name}"
                tensors[whole] = self._made(whole, shape, kind)
        return tensors

    def _made(self, name: str, shape: tuple[int, ...], kind: Kind) -> ndarray:
        import numpy as np

        if kind == "adds" and len(shape) == 1:
            kind = self.adds
        if isinstance(kind, float):
            return np.full(shape, kind, np.float32)
        drawn = _drawn(name, shape)
        if kind == "decay":
            drawn[:] = np.log(np.abs(drawn) * np.float32(0.1) + np.float32(0.01))
            return drawn
        if kind == "bias":
            return drawn * np.float32(0.1)
        fan = shape[-2] if len(shape) == 3 else shape[-1]  # experts' are stored the other way round
        scaled: ndarray = drawn * np.float32((self.adds if kind == "adds" else 1.0) / fan**0.5)
        return scaled


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"specdebug {name}".encode()).digest()[:8], "big")


def _drawn(name: str, shape: tuple[int, ...]) -> ndarray:
    import numpy as np

    return np.random.default_rng(_seed(name)).standard_normal(shape).astype(np.float32)


def _attention(*, biased: bool) -> Iterator[Part]:
    for which, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        yield f"self_attn.{which}_proj.weight", (rows * HEAD, WIDTH), "reads"
        if biased:
            yield f"self_attn.{which}_proj.bias", (rows * HEAD,), "bias"


def _gpt_oss(layer: int) -> Iterator[Part]:
    yield from (("input_layernorm.weight", (WIDTH,), 1.0), ("post_attention_layernorm.weight", (WIDTH,), 1.0))
    yield from _attention(biased=True)
    yield "self_attn.o_proj.weight", (WIDTH, HEADS * HEAD), "adds"
    yield "self_attn.o_proj.bias", (WIDTH,), 0.0
    yield "self_attn.sinks", (HEADS,), "bias"
    yield "mlp.router.weight", (EXPERTS, WIDTH), "reads"
    yield "mlp.router.bias", (EXPERTS,), "bias"
    yield "mlp.experts.gate_up_proj", (EXPERTS, WIDTH, 2 * INNER), "reads"
    yield "mlp.experts.gate_up_proj_bias", (EXPERTS, 2 * INNER), "bias"
    yield "mlp.experts.down_proj", (EXPERTS, INNER, WIDTH), "adds"
    yield "mlp.experts.down_proj_bias", (EXPERTS, WIDTH), 0.0


def _llama(layer: int) -> Iterator[Part]:
    yield from (("input_layernorm.weight", (WIDTH,), 1.0), ("post_attention_layernorm.weight", (WIDTH,), 1.0))
    yield from _attention(biased=False)
    yield "self_attn.o_proj.weight", (WIDTH, HEADS * HEAD), "adds"
    for which in ("gate", "up"):
        yield f"mlp.{which}_proj.weight", (INNER, WIDTH), "reads"
    yield "mlp.down_proj.weight", (WIDTH, INNER), "adds"


def _qwen3_next(layer: int) -> Iterator[Part]:
    """Every other layer attends, the others keep a state that the gated delta rule changes."""
    yield from (("input_layernorm.weight", (WIDTH,), 0.0), ("post_attention_layernorm.weight", (WIDTH,), 0.0))
    if layer % 2:
        yield "self_attn.q_proj.weight", (2 * HEADS * HEAD, WIDTH), "reads"  # with a gate for each head
        for which in "kv":
            yield f"self_attn.{which}_proj.weight", (KV_HEADS * HEAD, WIDTH), "reads"
        yield from (("self_attn.q_norm.weight", (HEAD,), 0.0), ("self_attn.k_norm.weight", (HEAD,), 0.0))
        yield "self_attn.o_proj.weight", (WIDTH, HEADS * HEAD), "adds"
    else:
        keys, values = KV_HEADS * HEAD, HEADS * HEAD
        yield "linear_attn.in_proj_qkvz.weight", (2 * keys + 2 * values, WIDTH), "reads"
        yield "linear_attn.in_proj_ba.weight", (2 * HEADS, WIDTH), "reads"
        yield "linear_attn.conv1d.weight", (2 * keys + values, 1, 4), "reads"
        yield "linear_attn.dt_bias", (HEADS,), "bias"
        yield "linear_attn.A_log", (HEADS,), "decay"
        yield "linear_attn.norm.weight", (HEAD,), 1.0
        yield "linear_attn.out_proj.weight", (WIDTH, values), "adds"
    yield "mlp.gate.weight", (EXPERTS, WIDTH), "reads"
    yield "mlp.shared_expert_gate.weight", (1, WIDTH), "reads"
    for expert in ("shared_expert", *(f"experts.{number}" for number in range(EXPERTS))):
        for which in ("gate", "up"):
            yield f"mlp.{expert}.{which}_proj.weight", (INNER, WIDTH), "reads"
        yield f"mlp.{expert}.down_proj.weight", (WIDTH, INNER), "adds"


def _gemma4(layer: int, *, owns: bool = True) -> Iterator[Part]:
    """Yield the tensors of a layer, which normalises its additions. ``owns``: it has keys and values of its own."""
    for name in ("input_layernorm", "pre_feedforward_layernorm"):
        yield f"{name}.weight", (WIDTH,), 1.0
    for name in ("post_attention_layernorm", "post_feedforward_layernorm"):
        yield f"{name}.weight", (WIDTH,), "adds"
    yield from (each for each in _attention(biased=False) if owns or "q_proj" in each[0])
    yield "self_attn.q_norm.weight", (HEAD,), 0.4  # queries and keys are normalised, and not scaled
    if owns:
        yield "self_attn.k_norm.weight", (HEAD,), 1.0
    yield "self_attn.o_proj.weight", (WIDTH, HEADS * HEAD), "reads"
    for which in ("gate", "up"):
        yield f"mlp.{which}_proj.weight", (INNER, WIDTH), "reads"
    yield "mlp.down_proj.weight", (WIDTH, INNER), "reads"
    yield "layer_scalar", (1,), 1.0


def _granite(layer: int) -> Iterator[Part]:
    """Every other layer attends, the others keep a state of Mamba2."""
    yield from (("input_layernorm.weight", (WIDTH,), 1.0), ("post_attention_layernorm.weight", (WIDTH,), 1.0))
    if layer % 2:
        yield from _attention(biased=False)
        yield "self_attn.o_proj.weight", (WIDTH, HEADS * HEAD), "adds"
    else:
        values, convolved = HEADS * HEAD, HEADS * HEAD + 2 * STATE
        yield "mamba.in_proj.weight", (values + convolved + HEADS, WIDTH), "reads"
        yield "mamba.conv1d.weight", (convolved, 1, 4), "reads"
        yield "mamba.conv1d.bias", (convolved,), "bias"
        yield "mamba.dt_bias", (HEADS,), "bias"
        yield "mamba.A_log", (HEADS,), "decay"
        yield "mamba.D", (HEADS,), 1.0
        yield "mamba.norm.weight", (values,), 1.0
        yield "mamba.out_proj.weight", (WIDTH, values), "adds"
    yield "shared_mlp.input_linear.weight", (2 * INNER, WIDTH), "reads"
    yield "shared_mlp.output_linear.weight", (WIDTH, INNER), "adds"


_WINDOWS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "sliding_window": 16, "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"] * 3, "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "swiglu_limit": 7.0,
}  # fmt: skip
_STATE = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "attention_bias": False,
    "layer_types": ["linear_attention", "full_attention"] * 3, "full_attention_interval": 2,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": HEAD, "linear_value_head_dim": HEAD,
    "linear_num_key_heads": KV_HEADS, "linear_num_value_heads": HEADS, "num_experts": EXPERTS, "num_experts_per_tok": 2,
    "moe_intermediate_size": INNER,
    "shared_expert_intermediate_size": INNER, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "partial_rotary_factor": 0.25, "rope_theta": 10000.0,
}  # fmt: skip
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "sliding_window": 16, "attention_bias": False,
    "layer_types": ["sliding_attention", "full_attention"], "hidden_activation": "gelu_pytorch_tanh",
    "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE}, "global_head_dim": HEAD,
    "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "eos_token_id": None,
    # what SGLang derives of these, but not for a model of text alone
    "v_head_dim": HEAD, "swa_head_dim": HEAD, "swa_v_head_dim": HEAD, "swa_num_key_value_heads": KV_HEADS,
}  # fmt: skip
_MAMBA = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "attention_bias": False,
    "layer_types": ["mamba", "attention"] * 3, "num_local_experts": 0, "num_experts_per_tok": 0,
    "shared_intermediate_size": INNER, "position_embedding_type": "rope", "rope_theta": 10000.0,
    "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": HEAD**-0.5,
    "mamba_n_heads": HEADS, "mamba_d_head": HEAD, "mamba_n_groups": 1, "mamba_d_state": STATE, "mamba_d_conv": 4,
    "mamba_expand": 1, "mamba_chunk_size": 64, "mamba_conv_bias": True, "mamba_proj_bias": False,
}  # fmt: skip
_ASSISTANT = {
    "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "backbone_hidden_size": WIDTH,
    "tie_word_embeddings": False,
}  # fmt: skip
MADE: Mapping[str, MadeModel] = {
    "tiny-windows": MadeModel(_WINDOWS, 6, _gpt_oss, 1.3),
    "tiny-windows-draft": MadeModel(_WINDOWS, 6, _gpt_oss, 1.3, cut=4),
    "tiny-state": MadeModel(_STATE, 6, _qwen3_next, 1.5, norm=0.0),
    "tiny-mamba": MadeModel(_MAMBA, 6, _granite, 1.15),
    "tiny-frozen": MadeModel(_GEMMA4, 2, _gemma4, 1.4, embedded=WIDTH**0.5),
    "tiny-frozen-assistant": MadeModel(
        {**_GEMMA4, "num_kv_shared_layers": 2},
        2,
        partial(_gemma4, owns=False),
        1.4,
        embedded=WIDTH**0.5,
        around=_ASSISTANT,
        projections={"pre_projection.weight": (1.0, 0.25), "post_projection.weight": (1.0,)},
    ),
    "tiny-state-draft": MadeModel({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, 1, _llama, 1.3),
}
"""By the names that scenarios have for them."""


def made_checkpoint(name: str, tokenizer: Path) -> Path | None:
    """The folder of a checkpoint of :data:`MADE`, made in the user's cache unless it is there; None of any other name.
    ``tokenizer``: the folder whose tokenizer it has. Raises OSError."""
    model = MADE.get(name)
    if model is None:
        return None
    config = json.dumps(model.whole_config(), indent=1) + "\n"
    folder = cache_folder("checkpoints") / f"{name}-{hashlib.sha256(config.encode()).hexdigest()[:12]}"

    def write(made: Path) -> None:
        from safetensors.numpy import save_file

        save_file(model.tensors(), made / "model.safetensors", metadata={"format": "pt"})
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(tokenizer / file, made / file)
        (made / "config.json").write_text(config, encoding="utf-8")

    made_once(folder, write)
    return folder

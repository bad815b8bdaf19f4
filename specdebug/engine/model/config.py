"""``config.json`` of a Llama-family model, read into a frozen value; what we do not support is refused.

Both spellings of RoPE are read: ``rope_theta`` beside ``rope_scaling`` (transformers 4), and one ``rope_parameters``
(transformers 5).
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from specdebug.base.errors import CheckpointError, ContentError
from specdebug.base.schema import Item
from specdebug.base.yamlio import plain_doc

T = TypeVar("T")

MAX_SIZE = 2**31 - 1
"""The largest whole number in a config: no model is near it, and products of three fit the integers torch counts in."""

MAX_HEAD_DIM = 4096
"""The largest head, as RoPE's table is made before any tensor is looked at; published ones have up to 512."""

LLAMA_ARCHITECTURES = {"LlamaForCausalLM": False, "MistralForCausalLM": False, "Qwen2ForCausalLM": True}
"""Llama's family; True where q, k and v carry a bias although config.json does not say."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
shown = _REPR.repr
"""A value of a config in a message, cut short: a file may hold one of any length and depth."""


class Keys:
    """Typed look-ups in one JSON object; a null counts as absent, as transformers reads it."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def error(self, message: str) -> CheckpointError:
        """An error that names the file."""
        return CheckpointError(f"{self.where}: {message}")

    def _read(self, key: str, default: Any, reader: Callable[[Item], T]) -> T:
        """A value, by a reader of the kit that scenarios are read with (``base/schema.py``)."""
        value = self.data.get(key)
        value = default if value is None else value
        if value is None:
            raise self.error(f"{key} is missing")
        try:
            return reader(Item(_CONFIG, (key,), value))
        except ContentError as error:
            raise self.error(f"{key} {error.reason}") from None

    def positive_int(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 to ``MAX_SIZE``. Raises CheckpointError for anything else, as the others do."""
        return self._read(key, default, lambda item: item.integer(low=1, high=MAX_SIZE))

    def positive_float(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        return self._read(key, default, _positive)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        return self._read(key, default, Item.boolean)

    def section(self, key: str) -> dict[str, Any]:
        """An object within the object, empty if absent."""
        return self._read(key, {}, lambda item: {name: each.value for name, each in item.entries().items()})


_CONFIG = plain_doc(None, "config.json")


def _positive(item: Item) -> float:
    value = item.number(low=0)
    if value == 0:
        raise item.expected("above 0")
    return value


def architecture_of(data: Mapping[str, Any]) -> str:
    """The one name in ``architectures``, or nothing when that key holds anything else."""
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str) else ""


def refuse_the_unsupported(keys: Keys) -> None:
    """Raise for a config that would load without complaint and then compute something else."""
    data = keys.data
    if data.get("hidden_act", "silu") != "silu":
        raise keys.error(f"hidden_act {shown(data['hidden_act'])} is not supported, only 'silu'")
    if data.get("mlp_bias"):
        raise keys.error("mlp_bias true is not supported; no published Llama uses it")
    if data.get("quantization_config"):
        raise keys.error("the weights are quantised; dequantise them to bf16, fp16 or fp32 first")
    # Qwen2 writes a window width and switches it off beside it
    if data.get("sliding_window") and data.get("use_sliding_window", True):
        raise keys.error(f"sliding_window {shown(data['sliding_window'])} is not supported, only full attention")


def common_of(keys: Keys) -> dict[str, Any]:
    """What every decoder's config has to say alike."""
    eos = keys.data.get("eos_token_id")  # the ids that end a text: none, one or several
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(type(i) is int and 0 <= i <= MAX_SIZE for i in ids):
        raise keys.error(f"eos_token_id must be a token id or a list of them, not {shown(eos)}")
    return {
        "hidden_size": keys.positive_int("hidden_size"),
        "num_layers": keys.positive_int("num_hidden_layers"),
        "num_heads": keys.positive_int("num_attention_heads"),
        "intermediate_size": keys.positive_int("intermediate_size"),
        "vocab_size": keys.positive_int("vocab_size"),
        "rms_norm_eps": keys.positive_float("rms_norm_eps", 1e-6),
        "tie_word_embeddings": keys.flag("tie_word_embeddings"),
        "max_position_embeddings": keys.positive_int("max_position_embeddings", 2048),
        "eos_token_ids": tuple(ids),
    }


@dataclass(frozen=True)
class RopeScaling:
    """The llama3 frequency rescaling: wavelengths beyond the original context are stretched by ``factor``."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class LlamaConfig:
    """Shapes and constants of a decoder. Sizes count elements; ``head_dim`` need not be hidden_size/num_heads."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    qkv_bias: bool
    output_bias: bool
    kv_layout: str = "mha"

    @property
    def value_dim(self) -> int:
        return self.head_dim

    @property
    def rotary_dim(self) -> int:
        return self.head_dim

    @property
    def softmax_scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def q_size(self) -> int:
        """The width of all query heads, Hq*D."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """The width of all key heads, Hkv*D."""
        return self.num_kv_heads * self.head_dim

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> LlamaConfig:
        """Read the parsed ``config.json``; ``where`` (its path) opens every message.
        Raises CheckpointError if a key is missing or of the wrong kind, or asks for what the engine does not do."""
        keys = Keys(data, where)
        refuse_the_unsupported(keys)
        hidden_size = keys.positive_int("hidden_size")
        num_heads = keys.positive_int("num_attention_heads")
        num_kv_heads = keys.positive_int("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise keys.error(f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
        if data.get("head_dim") is None and hidden_size % num_heads:
            problem = f"hidden_size {hidden_size} is no multiple of num_attention_heads {num_heads}"
            raise keys.error(f"{problem}; set head_dim")
        head_dim = keys.positive_int("head_dim", hidden_size // num_heads)
        if head_dim > MAX_HEAD_DIM:
            problem = f"head_dim {head_dim} is more than {MAX_HEAD_DIM}"
            raise keys.error(f"{problem}; is hidden_size or num_attention_heads wrong?")
        if head_dim % 2:
            raise keys.error(f"head_dim {head_dim} is odd; RoPE turns pairs")
        theta, scaling = rope_of(keys)
        bias = keys.flag("attention_bias")
        return cls(
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rope_theta=theta,
            rope_scaling=scaling,
            qkv_bias=bias or LLAMA_ARCHITECTURES.get(architecture_of(data), False),
            output_bias=bias,
            **common_of(keys),
        )


@dataclass(frozen=True)
class Eagle3Options:
    """The options of a draft head's ``config.json`` beyond its decoder; an EAGLE head sets none of them."""

    decoder: Mapping[str, Any]  # where the keys of LlamaConfig lie
    draft_vocab_size: int | None
    aux_layer_ids: tuple[int, ...] | None  # as written
    norm_before_residual: bool

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> Eagle3Options:
        """Read either layout: flat, as EAGLE and SpecForge write it, or nested (``transformer_layer_config``).
        Raises CheckpointError if an option is of the wrong kind or not supported."""
        keys = Keys(data, where)
        nested = keys.section("transformer_layer_config")
        for option in ("norm_before_fc", "fc_norm", "norm_output"):
            if keys.flag(option):
                raise keys.error(f"{option} true is not supported")
        eagle = Keys(keys.section("eagle_config"), where)
        if eagle.data.get("use_aux_hidden_state") is False:
            raise keys.error("eagle_config.use_aux_hidden_state false is not supported")
        ids = eagle.data.get("eagle_aux_hidden_state_layer_ids", data.get("eagle_aux_hidden_state_layer_ids"))
        sound = isinstance(ids, list) and ids and all(type(i) is int and abs(i) <= MAX_SIZE for i in ids)
        if ids is not None and not sound:
            raise keys.error(f"eagle_aux_hidden_state_layer_ids must be a list of layer numbers, not {shown(ids)}")
        return cls(
            decoder=nested or data,
            draft_vocab_size=keys.positive_int("draft_vocab_size") if data.get("draft_vocab_size") else None,
            aux_layer_ids=None if ids is None else tuple(ids),
            # speculators for vLLM, which nest, take true for granted (vllm's update_eagle3)
            norm_before_residual=keys.flag("norm_before_residual", bool(nested)),
        )

    def aux_layers_for(self, num_layers: int, where: str) -> tuple[int, ...]:
        """The layers of a target of ``num_layers`` whose *inputs* the head reads, ascending; by default 2, n//2, n-3.

        Lists that start with 1 name layers by their output, the input of the next one; all others name the input itself
        (sgl-project/sglang pull request 25454). Raises CheckpointError if the layers are not ascending or not this
        target's.
        """
        layers = self.aux_layer_ids or (2, num_layers // 2, num_layers - 3)
        if layers[0] == 1:
            layers = tuple(layer + 1 for layer in layers)
        if list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] > num_layers:
            problem = f"auxiliary layers {list(layers)} do not ascend within the target's {num_layers} layers"
            raise CheckpointError(f"{where}: {problem}; set eagle_config.eagle_aux_hidden_state_layer_ids")
        return layers


def target_kv_layers(data: Mapping[str, Any], where: str, num_layers: int, target_layers: int) -> tuple[int, ...]:
    """The target layer, below ``target_layers``, whose KV each of an assistant's ``num_layers`` layers reads.
    Raises CheckpointError if ``config.json`` does not name one for each."""
    keys = Keys(data, where)
    layers = data.get("target_kv_layers")
    if not isinstance(layers, list) or not all(type(each) is int for each in layers):
        raise keys.error(f"target_kv_layers must be a list of layer numbers, not {shown(layers)}")
    if len(layers) != num_layers:
        raise keys.error(f"target_kv_layers names {len(layers)} layers for num_hidden_layers {num_layers}; one each")
    outside = [each for each in layers if not 0 <= each < target_layers]
    if outside:
        raise keys.error(f"target_kv_layers holds {outside[0]}, and the target's layers are 0..{target_layers - 1}")
    return tuple(layers)


def rope_of(keys: Keys, kinds: tuple[str, ...] = ("llama3", "default")) -> tuple[float, RopeScaling | None]:
    """The base of the frequencies, and the llama3 rescaling if one is set.
    Raises CheckpointError for a kind of scaling that is none of ``kinds``."""
    merged = keys.section("rope_scaling") | keys.section("rope_parameters")
    rope = Keys({"rope_theta": keys.data.get("rope_theta")} | merged, keys.where)
    theta = rope.positive_float("rope_theta", 10000.0)
    kind = merged.get("rope_type", merged.get("type", "default"))
    if kind not in kinds:
        raise keys.error(f"RoPE scaling {shown(kind)} is not supported, only {' and '.join(map(repr, kinds))}")
    if kind == "default":
        return theta, None
    return theta, RopeScaling(
        factor=rope.positive_float("factor"),
        low_freq_factor=rope.positive_float("low_freq_factor"),
        high_freq_factor=rope.positive_float("high_freq_factor"),
        original_max_position_embeddings=rope.positive_int("original_max_position_embeddings"),
    )

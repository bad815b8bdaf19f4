"""``config.json``: both spellings of RoPE, defaults, and everything that must be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.config import Eagle3Options, LlamaConfig, RopeScaling
from specdebug.engine.model.loader import require_target_architecture

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 97,
}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
KEYS = [
    *LLAMA,
    *SCALING,
    "num_key_value_heads",
    "head_dim",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rope_type",
    "type",
    "eos_token_id",
    "sliding_window",
    "hidden_act",
    "draft_vocab_size",
    "eagle_config",
    "eagle_aux_hidden_state_layer_ids",
    "use_aux_hidden_state",
    "norm_before_residual",
    "transformer_layer_config",
]


def read(**changes):
    return LlamaConfig.from_dict({**LLAMA, **changes}, "config.json")


def test_defaults_are_those_of_transformers():
    config = read()
    assert (config.num_kv_heads, config.head_dim, config.q_size, config.kv_size) == (4, 16, 64, 64)
    assert (config.rms_norm_eps, config.rope_theta, config.max_position_embeddings) == (1e-6, 10000.0, 2048)
    assert config.rope_scaling is None
    assert config.eos_token_ids == ()
    assert not any((config.tie_word_embeddings, config.qkv_bias, config.output_bias))


def test_null_counts_as_absent():
    config = read(num_key_value_heads=None, head_dim=None, rope_scaling=None, eos_token_id=None, rope_theta=None)
    assert config == read()


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **SCALING}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **SCALING}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **SCALING}},
    ],
    ids=["transformers-4", "older", "transformers-5"],
)
def test_llama3_scaling_in_every_spelling(spelling):
    config = read(**spelling)
    assert config.rope_theta == 5e5
    assert config.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192)


def test_eos_may_be_one_or_several():
    assert read(eos_token_id=0).eos_token_ids == (0,)
    assert read(eos_token_id=[5, 7]).eos_token_ids == (5, 7)


def test_biases_by_architecture():
    assert not read().qkv_bias
    llama = read(attention_bias=True)
    assert (llama.qkv_bias, llama.output_bias) == (True, True)
    qwen = read(architectures=["Qwen2ForCausalLM"], sliding_window=4096, use_sliding_window=False)
    assert (qwen.qkv_bias, qwen.output_bias) == (True, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number from 1 to 2147483647, not '64'"),
        ({"hidden_size": True}, "hidden_size must be a whole number from 1 to 2147483647, not true"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number from 1 to 2147483647, not 0"),
        ({"vocab_size": 9.5}, "vocab_size must be a whole number from 1 to 2147483647, not 9.5"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"hidden_size": 66}, "hidden_size 66 is no multiple of num_attention_heads 4; set head_dim"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be above 0, not 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number, not nan"),
        ({"rope_theta": "1e4"}, "rope_theta must be a number of at least 0, not '1e4'"),
        ({"rope_scaling": "llama3"}, "rope_scaling must be a mapping, not 'llama3'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "RoPE scaling 'yarn' is not supported, only 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "RoPE scaling 'linear' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is missing"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, not 1"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list of them, not '</s>'"),
        ({"eos_token_id": [1, -1]}, "eos_token_id must be a token id"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported, only 'silu'"),
        ({"mlp_bias": True}, "mlp_bias true is not supported"),
        ({"quantization_config": {"bits": 4}}, "the weights are quantised; dequantise them"),
        ({"sliding_window": 4096}, "sliding_window 4096 is not supported"),
    ],
)
def test_what_cannot_be_run_is_refused(changes, message):
    with pytest.raises(CheckpointError) as caught:
        read(**changes)
    assert str(caught.value).startswith(f"config.json: {message}")


@pytest.mark.parametrize("names", [None, [], ["GPT2LMHeadModel"], "LlamaForCausalLM", [["x"]], ["a", "b"]])
def test_other_architectures_are_named(names):
    with pytest.raises(CheckpointError, match="is none of LlamaForCausalLM, MistralForCausalLM"):
        require_target_architecture({"architectures": names}, "config.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=6,
)


def complaint(reader):
    try:
        reader()
    except CheckpointError as error:
        return str(error)
    return ""


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
def test_any_json_is_read_or_refused_in_one_line(changes):
    data = LLAMA | changes
    for reader in (
        lambda: LlamaConfig.from_dict(data, "config.json"),
        lambda: require_target_architecture(data, "config.json"),
        lambda: Eagle3Options.from_dict(data, "config.json").aux_layers_for(32, "config.json"),
    ):
        assert "\n" not in complaint(reader)


def test_a_llama_is_accepted():
    require_target_architecture(LLAMA, "config.json")


def test_a_flat_head_norms_only_what_attention_reads():
    options = Eagle3Options.from_dict(LLAMA, "config.json")
    assert options.decoder == LLAMA
    assert not options.norm_before_residual


def test_a_nested_head_norms_the_residual_unless_it_says_otherwise():
    nested = {"transformer_layer_config": LLAMA}
    assert Eagle3Options.from_dict(nested, "config.json").norm_before_residual
    stated = nested | {"norm_before_residual": False}
    assert not Eagle3Options.from_dict(stated, "config.json").norm_before_residual
    assert Eagle3Options.from_dict(nested, "config.json").decoder == LLAMA


@pytest.mark.parametrize("num_layers", [1, 2, 5, 6])
def test_a_target_too_shallow_for_the_default_layers(num_layers):
    options = Eagle3Options.from_dict(LLAMA, "config.json")
    with pytest.raises(CheckpointError, match=r"set eagle_config\.eagle_aux_hidden_state_layer_ids"):
        options.aux_layers_for(num_layers, "config.json")


def test_default_auxiliary_layers_of_a_deep_target():
    assert Eagle3Options.from_dict(LLAMA, "config.json").aux_layers_for(32, "config.json") == (2, 16, 29)

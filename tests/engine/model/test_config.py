"""``config.json``: both spellings of RoPE, defaults, and everything that must be refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.config import Eagle3Options, LlamaConfig, RopeScaling
from specdebug.engine.model.deepseek_config import DeepseekConfig, ExpertsConfig
from specdebug.engine.model.loader import require_target_architecture
from tests.engine.mla_checkpoints import SHAPE

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 97,
}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
ROPE = ["rope_theta", "rope_scaling", "rope_parameters", "rope_type", "type", "rope_interleave"]
EAGLE3 = ["draft_vocab_size", "eagle_config", "eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state"]
NESTED = ["norm_before_residual", "transformer_layer_config"]
OTHERS = ["num_key_value_heads", "head_dim", "eos_token_id", "sliding_window", "hidden_act", "scoring_func"]
KEYS = [*LLAMA, *SCALING, *ROPE, *EAGLE3, *NESTED, *OTHERS, *SHAPE]


def read(**changes):
    return LlamaConfig.from_dict({**LLAMA, **changes}, "config.json")


def read_deepseek(**changes):
    return DeepseekConfig.from_dict({**SHAPE, **changes}, "config.json")


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
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a"),
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


def test_sizes_are_those_of_heads_as_projected_and_of_packed_rows():
    config = read_deepseek()
    assert (config.qk_head_dim, config.v_head_dim) == (24, 24)
    assert (config.kv_layout, config.num_heads, config.num_kv_heads) == ("mla", 4, 1)
    assert (config.head_dim, config.value_dim, config.rotary_dim) == (40, 32, 8)
    assert config.softmax_scale == 24**-0.5


def test_experts_are_read_and_may_be_absent():
    assert read_deepseek(first_k_dense_replace=1).experts == ExpertsConfig(8, 3, 4, 2, 32, 2, 2.5, True)
    dense = read_deepseek(n_routed_experts=None, first_k_dense_replace=None)
    assert (dense.experts, dense.first_k_dense_replace) == (None, 4)


def test_absent_options_are_those_of_the_published_models():
    config = read_deepseek(
        rope_theta=None, rope_interleave=None, rms_norm_eps=None, num_key_value_heads=None, q_lora_rank=None
    )
    assert (config.rope_theta, config.rope_interleave, config.rms_norm_eps) == (10000.0, True, 1e-6)
    assert config.q_lora_rank is None
    assert read_deepseek(rope_parameters={"rope_type": "default", "rope_theta": 500.0}).rope_theta == 500.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ({"kv_lora_rank": 0}, "kv_lora_rank must be a whole number from 1 to 2147483647, not 0"),
        ({"kv_lora_rank": 2**30}, "kv_lora_rank 1073741824 is more than 4096"),
        ({"q_lora_rank": "24"}, "q_lora_rank must be a whole number from 1 to 2147483647, not '24'"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim 7 is odd; RoPE turns pairs"),
        ({"v_head_dim": True}, "v_head_dim must be a whole number from 1 to 2147483647, not true"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not num_attention_heads 4; latent attention"),
        ({"attention_bias": True}, "attention_bias true is not supported"),
        ({"rope_interleave": 1}, "rope_interleave must be true or false, not 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 40}}, "RoPE scaling 'yarn' is not supported, only 'default'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "RoPE scaling 'llama3' is not supported, only 'default'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "the weights are quantised; dequantise them"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported, only 'sigmoid'"),
        ({"topk_method": "greedy"}, "topk_method 'greedy' is not supported, only 'noaux_tc'"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported, only 1"),
        (
            {"num_nextn_predict_layers": -1},
            "num_nextn_predict_layers must be a whole number from 1 to 2147483647, not -1",
        ),
        (
            {"first_k_dense_replace": False},
            "first_k_dense_replace must be a whole number from 1 to 2147483647, not false",
        ),
        (
            {"n_routed_experts": None, "first_k_dense_replace": 1},
            "first_k_dense_replace 1 leaves layers to experts, but n_routed_experts",
        ),
        ({"n_group": 3}, "n_routed_experts 8 does not make 3 groups (n_group) of two experts or more"),
        ({"n_group": 8}, "n_routed_experts 8 does not make 8 groups (n_group) of two experts or more"),
        ({"topk_group": 5}, "topk_group 5 is more than n_group 4"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok 5 is more than the experts of 2 groups (topk_group)"),
        ({"n_shared_experts": None}, "n_shared_experts is missing"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob must be true or false, not 'yes'"),
    ],
)
def test_a_deepseek_that_cannot_be_run_is_refused(changes, message):
    with pytest.raises(CheckpointError) as caught:
        read_deepseek(**changes)
    assert str(caught.value).startswith(f"config.json: {message}")


@pytest.mark.parametrize("names", [None, [], ["GPT2LMHeadModel"], "LlamaForCausalLM", [["x"]], ["a", "b"]])
def test_other_architectures_are_named(names):
    require_target_architecture(LLAMA, "config.json")
    with pytest.raises(CheckpointError, match="is none of LlamaForCausalLM, MistralForCausalLM"):
        require_target_architecture({"architectures": names}, "config.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
def test_any_json_is_read_or_refused_in_one_line(changes):
    data = LLAMA | changes
    for reader in (
        lambda: LlamaConfig.from_dict(data, "config.json"),
        lambda: require_target_architecture(data, "config.json"),
        lambda: Eagle3Options.from_dict(data, "config.json").aux_layers_for(32, "config.json"),
        lambda: read_deepseek(**changes),
    ):
        problem = ""
        try:
            reader()
        except CheckpointError as error:
            problem = str(error)
        assert "\n" not in problem


def test_a_nested_head_norms_the_residual_unless_it_says_otherwise_and_a_flat_one_only_what_attention_reads():
    nested = {"transformer_layer_config": LLAMA}
    for data, normed in ((LLAMA, False), (nested, True), (nested | {"norm_before_residual": False}, False)):
        options = Eagle3Options.from_dict(data, "config.json")
        assert (options.decoder, options.norm_before_residual) == (LLAMA, normed)


@pytest.mark.parametrize("num_layers", [1, 2, 5, 6])
def test_a_target_too_shallow_for_the_default_layers(num_layers):
    options = Eagle3Options.from_dict(LLAMA, "config.json")
    assert options.aux_layers_for(32, "config.json") == (2, 16, 29)
    with pytest.raises(CheckpointError, match=r"set eagle_config\.eagle_aux_hidden_state_layer_ids"):
        options.aux_layers_for(num_layers, "config.json")

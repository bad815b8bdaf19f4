"""config.json of a DeepSeek model: what is read, and what is refused in one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.deepseek_config import DeepseekConfig, ExpertsConfig
from tests.engine.mla_checkpoints import SHAPE

SPARSE = {"first_k_dense_replace": 1}


def read(**changes):
    return DeepseekConfig.from_dict({**SHAPE, **changes}, "config.json")


def test_sizes_are_those_of_heads_as_projected_and_of_packed_rows():
    config = read()
    assert (config.qk_head_dim, config.q_size) == (24, 96)
    assert (config.kv_layout, config.num_heads, config.num_kv_heads) == ("mla", 4, 1)
    assert (config.head_dim, config.value_dim, config.rotary_dim) == (40, 32, 8)
    assert config.softmax_scale == 24**-0.5


def test_experts_are_read_and_may_be_absent():
    assert read(**SPARSE).experts == ExpertsConfig(8, 3, 4, 2, 32, 2, 2.5, True)
    dense = read(n_routed_experts=None, first_k_dense_replace=None)
    assert (dense.experts, dense.first_k_dense_replace) == (None, 4)


def test_absent_options_are_those_of_the_published_models():
    config = read(rope_theta=None, rope_interleave=None, rms_norm_eps=None, num_key_value_heads=None, q_lora_rank=None)
    assert (config.rope_theta, config.rope_interleave, config.rms_norm_eps) == (10000.0, True, 1e-6)
    assert config.q_lora_rank is None
    assert read(rope_parameters={"rope_type": "default", "rope_theta": 500.0}).rope_theta == 500.0


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
            {"n_routed_experts": None, **SPARSE},
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
def test_what_cannot_be_run_is_refused(changes, message):
    with pytest.raises(CheckpointError) as caught:
        read(**changes)
    assert str(caught.value).startswith(f"config.json: {message}")


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = [*SHAPE, "rope_scaling", "rope_parameters", "rope_interleave", "scoring_func"]


@given(st.dictionaries(st.sampled_from(KEYS), VALUES | st.dictionaries(st.text(), st.none()), max_size=6))
def test_any_json_is_read_or_refused_in_one_line(changes):
    problem = ""
    try:
        config = read(**changes)
        assert config.head_dim == config.value_dim + config.rotary_dim
    except CheckpointError as error:
        problem = str(error)
    assert "\n" not in problem

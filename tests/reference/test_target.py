"""The dense targets, Llama's and DeepSeek's, against transformers, an implementation of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specdebug.base.errors import CheckpointError
from specdebug.reference import DenseCache, ModelConfig, greedy_generate, load_weights, target_forward
from tests.tolerance import layers_rounding

transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 8,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 500.0,
}  # fmt: skip
LLAMAS: dict[str, Any] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "llama3": {"rope_parameters": LLAMA3},
    "wide_heads": {"head_dim": 16, "rms_norm_eps": 1e-3},
}

LATENT = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
    "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "first_k_dense_replace": 6, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {
    "first_k_dense_replace": 1, "moe_intermediate_size": 24, "n_routed_experts": 8, "n_shared_experts": 2,
    "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
}  # fmt: skip
DEEPSEEKS: dict[str, Any] = {
    "dense": {},
    "tied_latent": {"tie_word_embeddings": True},
    "whole_queries": {"q_lora_rank": None},
    "halves": {"rope_interleave": False},
    "experts": EXPERTS,
    "unnormed_experts": {**EXPERTS, "norm_topk_prob": False, "n_shared_experts": 1},
}
NEAR = layers_rounding({**SHAPE, "intermediate_size": 160}, 70)


@pytest.fixture(params=[*LLAMAS, *DEEPSEEKS])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path):
    torch.manual_seed(0)
    if request.param in LLAMAS:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, **LLAMAS[request.param])).eval()
    else:
        config = transformers.DeepseekV3Config(**{**LATENT, **DEEPSEEKS[request.param]})
        model = transformers.DeepseekV3ForCausalLM(config).eval()
    with torch.no_grad():
        for w in model.parameters():  # large enough that attention is far from uniform
            w.add_(torch.randn_like(w) * 0.2)
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.copy_(torch.randn_like(bias) * 0.3)
    model.save_pretrained(tmp_path)
    return model, tmp_path


def test_logits_hidden_and_aux_equal_transformers(checkpoint) -> None:
    model, path = checkpoint
    weights, config = load_weights(path)
    ids = torch.randint(97, (2, 70), generator=torch.Generator().manual_seed(1))
    logits, hidden, aux = target_forward(weights, config, ids)
    with torch.no_grad():
        expected = model(ids, output_hidden_states=True)
    torch.testing.assert_close(logits, expected.logits, **NEAR)
    torch.testing.assert_close(hidden, expected.hidden_states[-1], **NEAR)
    if config.num_layers == SHAPE["num_hidden_layers"]:
        told, chosen = (2, 4, 5), (1, 3, 7)
    else:
        told, chosen = (2, 3), (1, 4)
    torch.testing.assert_close(aux, torch.cat([expected.hidden_states[i] for i in told], dim=-1), **NEAR)
    found = target_forward(weights, config, ids, aux_layers=chosen)[2]
    torch.testing.assert_close(found, torch.cat([expected.hidden_states[i] for i in chosen], dim=-1), **NEAR)


def test_cached_passes_equal_one_pass(checkpoint) -> None:
    _, path = checkpoint
    weights, config = load_weights(path)
    ids = torch.randint(97, (40,), generator=torch.Generator().manual_seed(2))
    whole, _, _ = target_forward(weights, config, ids)
    cache = DenseCache(config, 40)
    parts = [target_forward(weights, config, part, cache=cache)[0] for part in ids.split([17, 1, 12, 10])]
    torch.testing.assert_close(torch.cat(parts), whole, **NEAR)


def test_greedy_output_equals_generate(checkpoint) -> None:
    model, path = checkpoint
    weights, config = load_weights(path)
    ids = torch.randint(1, 97, (1, 9), generator=torch.Generator().manual_seed(3))
    out = greedy_generate(weights, config, ids, 20)
    expected = model.generate(
        ids, max_new_tokens=20, min_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize("checkpoint", list(DEEPSEEKS), indirect=True)
def test_what_positions_of_latents_keep_equals_transformers_cache(checkpoint) -> None:
    model, path = checkpoint
    weights, config = load_weights(path)
    ids = torch.randint(97, (1, 30), generator=torch.Generator().manual_seed(4))
    cache = DenseCache(config, 30, batch=(1,))
    target_forward(weights, config, ids, cache=cache)
    with torch.no_grad():
        expected = model(ids, use_cache=True).past_key_values
    for layer in range(config.num_layers):
        latent, key = expected.layers[layer].keys, expected.layers[layer].values
        torch.testing.assert_close(cache.values[layer], latent, **NEAR)
        torch.testing.assert_close(cache.keys[layer], key, **NEAR)


def test_yarn_is_refused() -> None:
    with pytest.raises(CheckpointError, match="RoPE scaling 'yarn' is not supported"):
        ModelConfig.from_dict({**LATENT, "rope_scaling": {"type": "yarn", "factor": 40}})

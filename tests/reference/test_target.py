"""The dense target against transformers, an implementation nobody here wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdebug.reference import DenseCache, greedy_generate, load_weights, target_forward
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
NEAR = layers_rounding(SHAPE, 70)


@pytest.fixture(params=["tied", "untied", "llama3", "wide_heads"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path):
    extra = {
        "tied": {"tie_word_embeddings": True},
        "untied": {"tie_word_embeddings": False},
        "llama3": {"rope_parameters": LLAMA3},
        "wide_heads": {"head_dim": 16, "rms_norm_eps": 1e-3},
    }[request.param]
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, **extra)).eval()
    with torch.no_grad():
        for w in model.parameters():  # large enough that attention is far from uniform
            w.add_(torch.randn_like(w) * 0.2)
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
    inputs = torch.cat([expected.hidden_states[i] for i in (2, 4, 5)], dim=-1)
    torch.testing.assert_close(aux, inputs, **NEAR)
    chosen = target_forward(weights, config, ids, aux_layers=(1, 3, 7))[2]
    expected_aux = torch.cat([expected.hidden_states[i] for i in (1, 3, 7)], dim=-1)
    torch.testing.assert_close(chosen, expected_aux, **NEAR)


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

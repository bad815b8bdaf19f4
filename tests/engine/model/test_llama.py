"""The target against transformers on the same checkpoint: logits, hidden and auxiliary states."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.model import load_target

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500000.0,
}


def reference(model, ids):
    with torch.inference_mode():
        out = model(ids[None], output_hidden_states=True)
    return out.logits[0], [h[0] for h in out.hidden_states]


def assert_same_logits(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * theirs.abs().max().item())
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({}, id="untied"),
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param({"shards": "60KB"}, id="sharded"),
        pytest.param({"num_key_value_heads": 1}, id="one-kv-head"),
        pytest.param({"num_key_value_heads": 4}, id="no-groups"),
        pytest.param({"head_dim": 24}, id="explicit-head-dim"),
        pytest.param({"attention_bias": True}, id="attention-bias"),
        pytest.param({"rms_norm_eps": 0.1}, id="large-eps"),
        pytest.param({"rope_parameters": LLAMA3}, id="llama3-scaling"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}, id="other-theta"),
        pytest.param({"kind": "Mistral", "sliding_window": None}, id="mistral"),
        pytest.param({"kind": "Qwen2"}, id="qwen2"),
    ],
)
def test_logits_and_hidden_states_equal_transformers(hf_target, dense, overrides):
    theirs, folder = hf_target(**overrides)
    if "shards" in overrides:
        assert len(list(folder.glob("*.safetensors"))) > 2
    ours = load_target(folder)
    ids = torch.randint(0, 97, (300,), generator=torch.Generator().manual_seed(1))
    logits, hidden_states = reference(theirs, ids)
    with torch.inference_mode():
        out = ours.forward(ids, torch.arange(300), dense(), aux_layers=(0, 3, 7))
        assert_same_logits(ours.logits(out.hidden), logits)
    torch.testing.assert_close(out.hidden, hidden_states[-1], rtol=1e-4, atol=1e-4)
    # transformers norms its last entry, so input 7 (the last layer's output) is checked through the norm
    aux = out.aux.view(300, 3, 64)
    torch.testing.assert_close(aux[:, 0], hidden_states[0], rtol=0, atol=0)
    torch.testing.assert_close(aux[:, 1], hidden_states[3], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(theirs.model.norm(aux[:, 2]), hidden_states[-1], rtol=1e-4, atol=1e-4)

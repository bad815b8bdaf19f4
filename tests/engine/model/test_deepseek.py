"""DeepSeek targets with latent attention, against transformers; queries are absorbed here, and are not there."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.loader import load_target
from specdebug.engine.model.rope import separate_pairs
from tests.engine.mla_checkpoints import SHAPE, make_target, nextn_tensors
from tests.engine.model.helpers import LatentAttention, changed, refused
from tests.tolerance import rounding

LENGTH = 60
IDS = torch.randint(0, SHAPE["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(4))
POSITIONS = torch.arange(LENGTH)
HEADS = 4
# norms, projections to latents and back, absorption, scores, values, the way back, both MLPs
SUMS = (64, 64, 24, 24, 32, 16, 40, LENGTH, 32, HEADS * 24, 64, 64, 96, 64, 32, 8)
NEAR = rounding(*SUMS, times=SHAPE["num_hidden_layers"], size=2.0)
SPARSE = {"first_k_dense_replace": 1}


def reference(model) -> tuple[Tensor, Tensor]:
    """Logits and final hidden states of the whole text."""
    with torch.no_grad():
        out = model(IDS[None], output_hidden_states=True)
    return out.logits[0], out.hidden_states[-1][0]


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({}, id="dense"),
        pytest.param({"q_lora_rank": None}, id="plain-queries"),
        pytest.param({"rope_interleave": False}, id="halves"),
        pytest.param({"rope_interleave": False, "q_lora_rank": None}, id="halves-plain-queries"),
        pytest.param(SPARSE, id="experts"),
        pytest.param({**SPARSE, "rope_interleave": False, "q_lora_rank": None}, id="experts-halves-plain-queries"),
        pytest.param({"first_k_dense_replace": 0, "norm_topk_prob": False}, id="experts-everywhere-unnormed"),
        pytest.param({**SPARSE, "n_group": 1, "topk_group": 1}, id="one-group"),
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param({"rms_norm_eps": 0.1}, id="large-eps"),
        pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}, id="other-theta"),
        pytest.param({"qk_nope_head_dim": 5, "v_head_dim": 7}, id="odd-heads"),
    ],
)
def test_logits_and_hidden_states_equal_transformers(tmp_path, overrides):
    logits, hidden = reference(make_target(tmp_path, **overrides))
    ours = load_target(tmp_path)
    with torch.inference_mode():
        out = ours.forward(IDS, POSITIONS, LatentAttention(ours.config.softmax_scale))
        torch.testing.assert_close(out.hidden, hidden, **NEAR)
        torch.testing.assert_close(ours.logits(out.hidden), logits, **NEAR)
    assert out.aux is None


@pytest.mark.parametrize("interleave", [True, False])
def test_what_is_stored_is_what_transformers_caches(tmp_path, interleave):
    """A normed latent, and a key part in transformers' order of dimensions once its pairs are separated."""
    theirs = make_target(tmp_path, rope_interleave=interleave)
    ours = load_target(tmp_path)
    with torch.no_grad():
        cached = theirs(IDS[None], use_cache=True).past_key_values
    with torch.inference_mode():
        attention = LatentAttention(ours.config.softmax_scale)
        ours.forward(IDS, POSITIONS, attention)
    for layer in range(SHAPE["num_hidden_layers"]):
        latent, part = cached.layers[layer].keys[0, 0], cached.layers[layer].values[0, 0]
        rows = separate_pairs(attention.rows[layer], ours.config.rotary_dim)[:, 0]
        torch.testing.assert_close(rows, torch.cat((latent, part), 1), **NEAR)


def test_positions_end_where_they_are_said_to(tmp_path):
    make_target(tmp_path)
    assert load_target(tmp_path).rotary.max_positions == 512
    short = load_target(tmp_path, max_positions=40)
    with torch.inference_mode(), pytest.raises(IndexError):
        short.forward(IDS[:1], torch.tensor([40]), LatentAttention(1.0))


def test_next_n_layers_beside_the_target_are_left_to_the_draft(tmp_path):
    theirs = make_target(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    stored = load_file(tmp_path / "model.safetensors") | nextn_tensors(config)
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ours = load_target(tmp_path)
    with torch.inference_mode():
        out = ours.forward(IDS, POSITIONS, LatentAttention(ours.config.softmax_scale))
    torch.testing.assert_close(out.hidden, reference(theirs)[1], **NEAR)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("model.layers.1.self_attn.kv_b_proj.weight", None, "is missing"),
        ("model.layers.1.self_attn.kv_a_proj_with_mqa.weight", (39, 64), r"has shape \[39, 64\], .* \[40, 64\]"),
        ("model.layers.2.mlp.gate.weight", (7, 64), r"has shape \[7, 64\], .* \[8, 64\]"),
        ("model.layers.2.mlp.experts.5.up_proj.weight", None, "is missing"),
        ("model.layers.2.self_attn.k_proj.weight", (3, 3), "has no place in this architecture"),
        ("model.layers.5.enorm.weight", (64,), "has no place in this architecture"),
    ],
)
def test_a_tensor_that_does_not_fit_is_one_line(tmp_path, name, shape, message):
    make_target(tmp_path, **SPARSE)
    file = tmp_path / "model.safetensors"
    save_file(changed(load_file(file), {name: shape}), file, metadata={"format": "pt"})
    refused(tmp_path, f"tensor '{name}' {message}", load_target)


def test_experts_that_the_file_does_not_hold_are_not_made(tmp_path):
    make_target(tmp_path, **SPARSE)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_routed_experts": 2**30}))
    with pytest.raises(CheckpointError, match=r"mlp\.gate\.weight' has shape \[8, 64\]"):
        load_target(tmp_path)

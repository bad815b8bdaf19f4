"""EAGLE heads under their published names, against the definition written out in f64."""

from __future__ import annotations

import pytest
import torch

from specdebug.base.errors import CheckpointError, InvalidOption
from specdebug.engine.model import EagleDraft, load_draft, load_target
from specdebug.engine.model import draft as draft_module
from tests.engine.model.helpers import (
    DenseAttention,
    layer_shapes,
    make_target,
    random_tensors,
    reference_layer,
    rms_norm,
    write_head,
)
from tests.tolerance import layers_rounding

# config.json of yuhuili/EAGLE-LLaMA3-Instruct-8B, its sizes scaled to the tiny target
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": True,
    "vocab_size": 97,
}
IDS = torch.randint(0, 97, (40,), generator=torch.Generator().manual_seed(3))
POSITIONS = torch.arange(40)
NEAR = layers_rounding(CONFIG, 40, times=3)  # two layers at most, the projections before and after them
HIDDEN = torch.randn(40, 64, generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    make_target(folder)
    return load_target(folder)


def head_tensors(*, layers=1, embedding=True, fc_bias=False, first_norm=False):
    shapes = {"fc.weight": (64, 128)}
    if fc_bias:
        shapes["fc.bias"] = (64,)
    if embedding:
        shapes["embed_tokens.weight"] = (97, 64)
    for index in range(layers):
        shapes |= layer_shapes(f"layers.{index}", CONFIG, 64)
        if index or first_norm:
            shapes[f"layers.{index}.input_layernorm.weight"] = (64,)
    return random_tensors(shapes)


def reference(tensors, target_embedding, layers):
    embedding = tensors.get("embed_tokens.weight", target_embedding)
    both = torch.cat((embedding[IDS], HIDDEN), 1).double()
    x = both @ tensors["fc.weight"].double().T + tensors.get("fc.bias", torch.zeros(64)).double()
    for index in range(layers):
        norm = tensors.get(f"layers.{index}.input_layernorm.weight")
        normed = x if norm is None else rms_norm(x, norm.double())
        x = reference_layer(tensors, f"layers.{index}", CONFIG, normed, x)
    return x


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="published"),
        pytest.param({"embedding": False}, id="target-embedding"),
        pytest.param({"fc_bias": True}, id="fc-bias"),
        pytest.param({"first_norm": True}, id="input-norm"),
        pytest.param({"layers": 2}, id="two-layers"),
    ],
)
@pytest.mark.parametrize("pickled", [True, False], ids=["bin", "safetensors"])
@pytest.mark.parametrize("table_bytes", [0, draft_module.MAX_TABLE_BYTES], ids=["computed", "tabulated"])
def test_hidden_and_logits_equal_the_definition(tmp_path, target, options, pickled, table_bytes, monkeypatch):
    monkeypatch.setattr(draft_module, "MAX_TABLE_BYTES", table_bytes)
    tensors = head_tensors(**options)
    layers = options.get("layers", 1)
    folder = write_head(tmp_path / "head", CONFIG | {"num_hidden_layers": layers}, tensors, pickled=pickled)
    draft = load_draft(folder, algorithm="EAGLE", target=target)
    expected = reference(tensors, target.embedding, layers)
    with torch.inference_mode():
        hidden = draft.forward(IDS, POSITIONS, draft.project(HIDDEN), DenseAttention())
        logits = draft.logits(hidden)
    torch.testing.assert_close(hidden.double(), expected, **NEAR)
    torch.testing.assert_close(logits.double(), expected @ target.lm_head.double(), **NEAR)


def test_geometry_and_vocabulary_are_the_targets(tmp_path, target):
    draft = load_draft(write_head(tmp_path / "head", CONFIG, head_tensors()), algorithm="EAGLE", target=target)
    assert isinstance(draft, EagleDraft)
    assert (draft.num_layers, draft.num_heads, draft.num_kv_heads, draft.head_dim) == (1, 4, 2, 16)
    assert (draft.hidden_size, draft.target_feature_size, draft.vocab_size, draft.aux_layers) == (64, 64, 97, ())
    ids = torch.tensor([[0, 96]])
    assert draft.to_target_ids(ids) is ids


def test_a_recurrent_step_continues_the_sequence(tmp_path, target):
    """Prefill, then draft from the head's own hidden: what one pass over the same inputs computes."""
    folder = write_head(tmp_path / "head", CONFIG, head_tensors())
    draft = load_draft(folder, algorithm="EAGLE", target=target)
    attention = DenseAttention()
    with torch.inference_mode():
        prefilled = draft.forward(IDS[:30], POSITIONS[:30], HIDDEN[:30], attention)
        stepped = draft.forward(IDS[30:31], POSITIONS[30:31], prefilled[-1:], attention)
        inputs = torch.cat((HIDDEN[:30], prefilled[-1:]))
        whole = draft.forward(IDS[:31], POSITIONS[:31], inputs, DenseAttention())
    torch.testing.assert_close(stepped[0], whole[30], **NEAR)


def test_positions_reach_as_far_as_the_targets(tmp_path, target):
    """Published heads state a far shorter limit than their target has."""
    folder = write_head(tmp_path / "head", CONFIG, head_tensors())
    last = torch.tensor([511])
    with torch.inference_mode():
        load_draft(folder, algorithm="EAGLE", target=target).forward(IDS[:1], last, HIDDEN[:1], DenseAttention())
        short = load_draft(folder, algorithm="EAGLE", target=target, max_positions=100)
        with pytest.raises(IndexError):
            short.forward(IDS[:1], last, HIDDEN[:1], DenseAttention())


def test_the_head_runs_in_the_targets_dtype(tmp_path):
    make_target(tmp_path / "target")
    target = load_target(tmp_path / "target", dtype=torch.bfloat16)
    tensors = head_tensors()
    draft = load_draft(write_head(tmp_path / "head", CONFIG, tensors), algorithm="EAGLE", target=target)
    with torch.inference_mode():
        hidden = draft.forward(IDS, POSITIONS, HIDDEN.bfloat16(), DenseAttention())
    assert hidden.dtype == draft.logits(hidden).dtype == torch.bfloat16
    expected = reference(tensors, None, 1)
    assert (hidden.double() - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"vocab_size": 96}, {}, "vocab_size 96 is not the target's 97; this head drafts for another model"),
        ({"hidden_size": 32}, {}, "hidden_size 32 is not the target's 64"),
        ({}, {"fc.weight": None}, "tensor 'fc.weight' is missing"),
        (
            {},
            {"fc.weight": (64, 64)},
            r"tensor 'fc.weight' has shape \[64, 64\], but config.json calls for \[64, 128\]",
        ),
        ({}, {"layers.1.mlp.up_proj.weight": (96, 64)}, "tensor 'layers.1.mlp.up_proj.weight' has no place"),
        ({"num_hidden_layers": 2}, {}, "tensor 'layers.1.input_layernorm.weight' is missing"),
        ({}, {"embed_tokens.weight": (97, 32)}, "tensor 'embed_tokens.weight' has shape"),
    ],
)
def test_a_head_that_does_not_fit_is_one_line(tmp_path, target, config, tensors, message):
    made = head_tensors()
    for name, shape in tensors.items():
        if shape is None:
            del made[name]
        else:
            made[name] = torch.zeros(shape)
    folder = write_head(tmp_path / "head", CONFIG | config, made)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_draft(folder, algorithm="EAGLE", target=target)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_an_eagle_head_given_as_eagle3_is_named(tmp_path, target):
    folder = write_head(tmp_path / "head", CONFIG, head_tensors())
    with pytest.raises(InvalidOption, match=r"speculative\.algorithm: .* holds an EAGLE head; set EAGLE$"):
        load_draft(folder, algorithm="EAGLE3", target=target)

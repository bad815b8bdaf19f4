"""EAGLE-3 heads under their published names, against the definition written out in f64."""

from __future__ import annotations

import pytest
import torch

from specdebug.base.errors import CheckpointError, InvalidOption
from specdebug.engine.model import Eagle3Draft, load_draft, load_target
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

# config.json of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B and of SpecForge, sizes scaled to the tiny target
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
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
    "vocab_size": 97,
    "draft_vocab_size": 24,
}
TARGET_IDS = torch.arange(24) * 4 + 1  # which target ids the draft vocabulary keeps
IDS = torch.randint(0, 97, (40,), generator=torch.Generator().manual_seed(3))
POSITIONS = torch.arange(40)
NEAR = layers_rounding(CONFIG, 40, times=3)  # two layers at most, the projections before and after them
FEATURES = torch.randn(40, 192, generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    make_target(folder)
    return load_target(folder)


def head_tensors(*, prefix="midlayer", size=64, embedding=False, lm_head=24, d2t=True, t2d=True):
    config = CONFIG | {"hidden_size": size}
    shapes = {
        "fc.weight": (size, 192),
        f"{prefix}.input_layernorm.weight": (size,),
        f"{prefix}.hidden_norm.weight": (size,),
        **layer_shapes(prefix, config, 2 * size),
        "norm.weight": (size,),
    }
    if lm_head:
        shapes["lm_head.weight"] = (lm_head, size)
    if embedding:
        shapes["embed_tokens.weight"] = (97, size)
    tensors = random_tensors(shapes)
    if d2t:
        tensors["d2t"] = TARGET_IDS - torch.arange(24)
    if t2d:
        tensors["t2d"] = torch.zeros(97, dtype=torch.bool).index_fill(0, TARGET_IDS, True)
    return tensors


def reference(tensors, embedding, config=CONFIG, prefix="midlayer"):
    """Hidden after one pass over the whole sequence, before the norm."""
    w = {name: tensor.double() for name, tensor in tensors.items()}
    hidden = FEATURES.double() @ w["fc.weight"].T
    normed_hidden = rms_norm(hidden, w[f"{prefix}.hidden_norm.weight"])
    normed_embedding = rms_norm(embedding[IDS].double(), w[f"{prefix}.input_layernorm.weight"])
    residual = normed_hidden if config.get("norm_before_residual") else hidden
    return reference_layer(tensors, prefix, config, torch.cat((normed_embedding, normed_hidden), 1), residual)


def check(draft, tensors, expected, lm_head=None):
    with torch.inference_mode():
        hidden = draft.forward(IDS, POSITIONS, draft.project(FEATURES), DenseAttention())
        logits = draft.logits(hidden)
    torch.testing.assert_close(hidden.double(), expected, **NEAR)
    head = tensors["lm_head.weight"] if lm_head is None else lm_head
    normed = rms_norm(expected, tensors["norm.weight"].double())
    torch.testing.assert_close(logits.double(), normed @ head.double().T, **NEAR)


@pytest.mark.parametrize("pickled", [True, False], ids=["bin", "safetensors"])
@pytest.mark.parametrize("table_bytes", [0, draft_module.MAX_TABLE_BYTES], ids=["computed", "tabulated"])
@pytest.mark.parametrize("embedding", [True, False], ids=["own-embedding", "target-embedding"])
def test_hidden_and_logits_equal_the_definition(tmp_path, target, embedding, pickled, table_bytes, monkeypatch):
    monkeypatch.setattr(draft_module, "MAX_TABLE_BYTES", table_bytes)
    tensors = head_tensors(embedding=embedding)
    folder = write_head(tmp_path / "head", CONFIG, tensors, pickled=pickled)
    draft = load_draft(folder, algorithm="EAGLE3", target=target)
    assert isinstance(draft, Eagle3Draft)
    check(draft, tensors, reference(tensors, tensors.get("embed_tokens.weight", target.embedding)))


def test_speculators_layout_nests_the_config_and_norms_the_residual(tmp_path, target):
    tensors = head_tensors(prefix="layers.0")
    nested = {key: value for key, value in CONFIG.items() if key != "draft_vocab_size"}
    config = {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": 24,
        "transformer_layer_config": nested,
        "norm_before_residual": True,
    }
    folder = write_head(tmp_path / "head", config, tensors)
    draft = load_draft(folder, algorithm="EAGLE3", target=target)
    expected = reference(tensors, target.embedding, CONFIG | {"norm_before_residual": True}, "layers.0")
    check(draft, tensors, expected)


def test_names_may_carry_a_model_prefix(tmp_path, target):
    tensors = head_tensors()
    top = ("lm_head.weight", "d2t", "t2d")
    spelled = {name if name in top else f"model.{name}": tensor for name, tensor in tensors.items()}
    draft = load_draft(write_head(tmp_path / "head", CONFIG, spelled), algorithm="EAGLE3", target=target)
    check(draft, tensors, reference(tensors, target.embedding))


def test_a_head_may_be_narrower_than_its_target(tmp_path, target):
    tensors = head_tensors(size=32, embedding=True)
    config = CONFIG | {"hidden_size": 32, "target_hidden_size": 64}
    draft = load_draft(write_head(tmp_path / "head", config, tensors), algorithm="EAGLE3", target=target)
    assert (draft.hidden_size, draft.target_feature_size, draft.head_dim) == (32, 192, 8)
    check(draft, tensors, reference(tensors, tensors["embed_tokens.weight"], config))


def test_without_a_vocabulary_of_its_own_the_targets_head_serves(tmp_path, target):
    tensors = head_tensors(lm_head=None, d2t=False, t2d=False)
    config = {key: value for key, value in CONFIG.items() if key != "draft_vocab_size"}
    before = target.lm_head.clone()
    draft = load_draft(write_head(tmp_path / "head", config, tensors), algorithm="EAGLE3", target=target)
    assert draft.vocab_size == 97
    ids = torch.tensor([0, 96])
    assert draft.to_target_ids(ids) is ids
    check(draft, tensors, reference(tensors, target.embedding), lm_head=target.lm_head.T)
    assert torch.equal(target.lm_head, before)


@pytest.mark.parametrize("norm_before_residual", [True, False])
def test_what_it_is_given_stays_as_it_was(tmp_path, target, norm_before_residual):
    """The layer writes where its residual lay, which must not be the caller's hidden."""
    config = CONFIG | {"norm_before_residual": norm_before_residual}
    draft = load_draft(write_head(tmp_path / "head", config, head_tensors()), algorithm="EAGLE3", target=target)
    hidden = torch.randn(40, 64, generator=torch.Generator().manual_seed(5))
    before = hidden.clone()
    with torch.inference_mode():
        draft.forward(IDS, POSITIONS, hidden, DenseAttention())
    assert torch.equal(hidden, before)


def test_d2t_is_an_offset(tmp_path, target):
    draft = load_draft(write_head(tmp_path / "head", CONFIG, head_tensors()), algorithm="EAGLE3", target=target)
    assert draft.vocab_size == 24
    ids = torch.tensor([[0, 1], [10, 23]])
    assert draft.to_target_ids(ids).tolist() == [[1, 5], [41, 93]]
    with pytest.raises(IndexError):
        draft.to_target_ids(torch.tensor([24]))


def test_the_hidden_it_returns_is_what_it_takes(tmp_path, target):
    draft = load_draft(write_head(tmp_path / "head", CONFIG, head_tensors()), algorithm="EAGLE3", target=target)
    attention = DenseAttention()
    with torch.inference_mode():
        inputs = draft.project(FEATURES[:30])
        prefilled = draft.forward(IDS[:30], POSITIONS[:30], inputs, attention)
        stepped = draft.forward(IDS[30:31], POSITIONS[30:31], prefilled[-1:], attention)
        again = torch.cat((inputs, prefilled[-1:]))
        whole = draft.forward(IDS[:31], POSITIONS[:31], again, DenseAttention())
    torch.testing.assert_close(stepped[0], whole[30], **NEAR)


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        pytest.param({}, (2, 3, 4), id="default"),
        pytest.param({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}, (2, 4, 6), id="outputs"),
        pytest.param({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 5]}}, (2, 3, 5), id="inputs"),
        pytest.param({"eagle_aux_hidden_state_layer_ids": [0, 4, 7]}, (0, 4, 7), id="top-level"),
    ],
)
def test_auxiliary_layers(tmp_path, target, config, layers):
    folder = write_head(tmp_path / "head", CONFIG | config, head_tensors())
    assert load_draft(folder, algorithm="EAGLE3", target=target).aux_layers == layers


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"vocab_size": 98}, {}, "vocab_size 98 is not the target's 97"),
        ({"num_hidden_layers": 2}, {}, "num_hidden_layers 2; an EAGLE-3 head has one"),
        ({"norm_before_fc": True}, {}, "norm_before_fc true is not supported"),
        ({"draft_vocab_size": "24"}, {}, "draft_vocab_size must be a whole number from 1 to "),
        ({"draft_vocab_size": 30}, {}, r"tensor 'lm_head.weight' has shape \[24, 64\].*\[30, 64\]"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 8, 9]}, {}, r"layers \[2, 8, 9\] do not ascend within .* 7 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [4, 3, 2]}, {}, r"layers \[4, 3, 2\] do not ascend"),
        ({"eagle_aux_hidden_state_layer_ids": "2"}, {}, "must be a list of layer numbers, not '2'"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3]}, {}, r"tensor 'fc.weight' has shape \[64, 192\].*\[64, 128\]"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, {}, "use_aux_hidden_state false is not supported"),
        ({}, {"d2t": None}, "tensor 'd2t' is missing, yet draft_vocab_size 24 is not the target's 97"),
        ({}, {"d2t": torch.full((24,), 90)}, "tensor 'd2t' leads outside 97 target ids; it holds offsets"),
        ({}, {"d2t": torch.zeros(24, dtype=torch.long)}, "tensor 'd2t' leads to ids that t2d does not list"),
        ({}, {"d2t": torch.zeros(25, dtype=torch.long)}, r"tensor 'd2t' has shape \[25\]"),
        ({}, {"lm_head.weight": None}, "tensor 'lm_head.weight' is missing"),
        ({}, {"midlayer.hidden_norm.weight": None}, "tensor 'midlayer.hidden_norm.weight' is missing"),
        ({}, {"norm.weight": None}, "tensor 'norm.weight' is missing"),
        ({}, {"fc_norm.0.weight": torch.zeros(64)}, "tensor 'fc_norm.0.weight' has no place in this architecture"),
        ({}, {"fc.weight": torch.zeros(64, 192, dtype=torch.int8)}, "tensor 'fc.weight' is int8; convert"),
        ({"hidden_size": 32}, {}, "32"),
    ],
)
def test_a_head_that_does_not_fit_is_one_line(tmp_path, target, config, tensors, message):
    made = head_tensors()
    for name, tensor in tensors.items():
        if tensor is None:
            del made[name]
        else:
            made[name] = tensor
    folder = write_head(tmp_path / "head", CONFIG | config, made)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_draft(folder, algorithm="EAGLE3", target=target)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("prefix", ["midlayer", "layers.0"])
def test_an_eagle3_head_given_as_eagle_is_named(tmp_path, target, prefix):
    folder = write_head(tmp_path / "head", CONFIG, head_tensors(prefix=prefix))
    with pytest.raises(InvalidOption, match=r"speculative\.algorithm: .* holds an EAGLE-3 head; set EAGLE3$"):
        load_draft(folder, algorithm="EAGLE", target=target)

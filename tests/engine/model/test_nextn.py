"""Next-n layers as draft heads, against transformers' decoder layer fed with what the definition says."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdebug.base.errors import CheckpointError, InvalidOption
from specdebug.engine.model import NextnDraft, load_draft, load_target
from specdebug.engine.model import draft as draft_module
from tests.engine.mla_checkpoints import SHAPE, make_nextn, make_target, nextn_tensors
from tests.engine.model.helpers import make_target as make_llama
from tests.engine.model.latent import LatentAttention
from tests.tolerance import rounding

LENGTH, SIZE = 40, SHAPE["hidden_size"]
IDS = torch.randint(0, SHAPE["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(4))
HIDDEN = torch.randn(LENGTH, SIZE, generator=torch.Generator().manual_seed(5))
POSITIONS = torch.arange(LENGTH)
NEAR = rounding(SIZE, SIZE, 2 * SIZE, SIZE, SIZE, 24, 32, 16, 40, LENGTH, 32, 96, SIZE, SIZE, 96, 64, SIZE, size=4.0)


@pytest.fixture
def target(tmp_path):
    make_target(tmp_path / "target", **SPARSE)
    return load_target(tmp_path / "target")


SPARSE = {"first_k_dense_replace": 3}  # the target's last layer, too, has experts


def attention(draft):
    return LatentAttention(draft.softmax_scale)


def expected(folder, config, target, tensors):
    """Hidden and logits by the definition: eh_proj of both norms side by side, then transformers' own layer."""
    transformers = pytest.importorskip("transformers")
    prefix = f"model.layers.{config['num_hidden_layers']}."
    ours = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    sparse = "mlp.gate.weight" in ours
    one = {**config, "num_hidden_layers": 1, "first_k_dense_replace": 0 if sparse else 1}
    settings = {key: one[key] for key in (*SHAPE, "rms_norm_eps", "rope_interleave")}
    model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**settings))
    folder.mkdir()
    state = {f"model.layers.0.{name}": tensor for name, tensor in ours.items() if name.startswith(LAYER)}
    state |= {"model.norm.weight": ours["shared_head.norm.weight"], "model.embed_tokens.weight": target.embedding}
    state["lm_head.weight"] = ours.get("shared_head.head.weight", target.lm_head.t().contiguous())
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(model.config.to_json_string())
    model = type(model).from_pretrained(folder, dtype=torch.float32).eval()

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * ours[f"{name}.weight"]

    embedding = ours.get("embed_tokens.weight", target.embedding)
    both = torch.cat((norm(embedding[IDS], "enorm"), norm(HIDDEN, "hnorm")), 1)
    with torch.no_grad():
        out = model(inputs_embeds=(both @ ours["eh_proj.weight"].T)[None], output_hidden_states=True)
    return out.hidden_states[-1][0], out.logits[0]


LAYER = ("self_attn.", "mlp.", "input_layernorm.", "post_attention_layernorm.")


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "experts"])
@pytest.mark.parametrize("own", [False, True], ids=["target-embedding-and-head", "own-embedding-and-head"])
@pytest.mark.parametrize("table_bytes", [0, draft_module.MAX_TABLE_BYTES], ids=["computed", "tabulated"])
def test_hidden_and_logits_equal_the_definition(tmp_path, target, sparse, own, table_bytes, monkeypatch):
    monkeypatch.setattr(draft_module, "MAX_TABLE_BYTES", table_bytes)
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    tensors = nextn_tensors(config, scale=1.0, sparse=sparse)
    if own:
        generator = torch.Generator().manual_seed(7)
        for name in ("embed_tokens", "shared_head.head"):
            drawn = torch.randn(SHAPE["vocab_size"], SIZE, generator=generator)
            tensors[f"model.layers.4.{name}.weight"] = drawn
    make_nextn(tmp_path / "draft", tmp_path / "target", sparse=sparse)
    save_file(tensors, tmp_path / "draft" / "model.safetensors")
    draft = load_draft(tmp_path / "draft", algorithm="EAGLE", target=target)
    hidden, logits = expected(tmp_path / "reference", config, target, tensors)
    with torch.inference_mode():
        found = draft.forward(IDS, POSITIONS, draft.project(HIDDEN), attention(draft))
        torch.testing.assert_close(found, hidden, **NEAR)
        torch.testing.assert_close(draft.logits(found), logits, **NEAR)


def test_geometry_is_its_own_and_vocabulary_the_targets(tmp_path, target):
    make_nextn(tmp_path / "draft", tmp_path / "target")
    draft = load_draft(tmp_path / "draft", algorithm="EAGLE", target=target)
    assert isinstance(draft, NextnDraft)
    assert (draft.kv_layout, draft.num_layers, draft.num_heads, draft.num_kv_heads) == ("mla", 1, 4, 1)
    assert (draft.head_dim, draft.value_dim, draft.rotary_dim, draft.softmax_scale) == (40, 32, 8, 24**-0.5)
    assert (draft.hidden_size, draft.target_feature_size, draft.vocab_size, draft.aux_layers) == (64, 64, 61, ())
    ids = torch.tensor([[0, 60]])
    assert draft.to_target_ids(ids) is ids


def test_a_recurrent_step_continues_from_the_normed_output(tmp_path, target):
    make_nextn(tmp_path / "draft", tmp_path / "target")
    draft = load_draft(tmp_path / "draft", algorithm="EAGLE", target=target)
    remembered = attention(draft)
    with torch.inference_mode():
        prefilled = draft.forward(IDS[:30], POSITIONS[:30], HIDDEN[:30], remembered)
        stepped = draft.forward(IDS[30:31], POSITIONS[30:31], prefilled[-1:], remembered)
        inputs = torch.cat((HIDDEN[:30], prefilled[-1:]))
        whole = draft.forward(IDS[:31], POSITIONS[:31], inputs, attention(draft))
    torch.testing.assert_close(stepped[0], whole[30], **NEAR)


def test_the_folder_may_be_the_whole_published_checkpoint(tmp_path, target):
    make_nextn(tmp_path / "draft", tmp_path / "target")
    alone = load_draft(tmp_path / "draft", algorithm="EAGLE", target=target)
    stored = load_file(tmp_path / "target" / "model.safetensors") | load_file(tmp_path / "draft" / "model.safetensors")
    save_file(stored, tmp_path / "target" / "model.safetensors", metadata={"format": "pt"})
    beside = load_draft(tmp_path / "target", algorithm="EAGLE", target=load_target(tmp_path / "target"))
    with torch.inference_mode():
        outs = [each.forward(IDS, POSITIONS, HIDDEN, attention(each)) for each in (alone, beside)]
    assert torch.equal(*outs)


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"vocab_size": 60}, {}, "vocab_size 60 is not the target's 61; it drafts for another model"),
        ({"hidden_size": 32}, {}, "hidden_size 32 is not the target's 64; it drafts for another model"),
        ({"num_nextn_predict_layers": "1"}, {}, "num_nextn_predict_layers must be a whole number from 1 to "),
        ({"num_hidden_layers": 5}, {}, "tensor 'model.layers.5.enorm.weight' is missing"),
        ({}, {"eh_proj.weight": (64, 64)}, r"has shape \[64, 64\], but config.json calls for \[64, 128\]"),
        ({}, {"self_attn.q_proj.weight": (96, 64)}, "has no place in this architecture"),
        ({"n_routed_experts": None}, {"mlp.gate.weight": (8, 64)}, "routes to experts, but the config names none"),
    ],
)
def test_a_layer_that_does_not_fit_is_one_line(tmp_path, target, config, tensors, message):
    folder = tmp_path / "draft"
    make_nextn(folder, tmp_path / "target")
    told = json.loads((folder / "config.json").read_text()) | {"first_k_dense_replace": 5} | config
    (folder / "config.json").write_text(json.dumps(told))
    added = {f"model.layers.4.{name}": torch.zeros(shape) for name, shape in tensors.items()}
    save_file(load_file(folder / "model.safetensors") | added, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message) as caught:
        load_draft(folder, algorithm="EAGLE", target=target)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_next_n_layer_given_as_eagle3_or_as_a_target_is_named(tmp_path, target):
    make_nextn(tmp_path / "draft", tmp_path / "target")
    with pytest.raises(InvalidOption, match=r"holds one next-n layer of a latent \(MLA\) model; set EAGLE$"):
        load_draft(tmp_path / "draft", algorithm="EAGLE3", target=target)
    with pytest.raises(CheckpointError, match=r"'DeepseekV3ForCausalLMNextN'\] is none of LlamaForCausalLM"):
        load_target(tmp_path / "draft")


def test_it_does_not_draft_for_a_model_of_another_size(tmp_path):
    make_target(tmp_path / "target")
    make_nextn(tmp_path / "draft", tmp_path / "target")
    make_llama(tmp_path / "llama")
    with pytest.raises(CheckpointError, match="vocab_size 61 is not the target's 97"):
        load_draft(tmp_path / "draft", algorithm="EAGLE", target=load_target(tmp_path / "llama"))

"""Next-n layers under their published names: of Llama's family against the definition written out in f64, of
DeepSeek's against transformers' decoder layer fed with what the definition says."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdebug.base.errors import CheckpointError, InvalidOption
from specdebug.engine.model.loader import load_draft, load_mtp, load_target
from specdebug.engine.model.models import NextnDraft
from tests.engine.mla_checkpoints import SHAPE, make_nextn, make_target, nextn_tensors
from tests.engine.model.helpers import (
    TINY,
    DenseAttention,
    LatentAttention,
    changed,
    layer_shapes,
    random_tensors,
    reference_layer,
    refused,
    rms_norm,
    write_head,
)
from tests.tolerance import layers_rounding, rounding

LENGTH, SIZE = 40, SHAPE["hidden_size"]
IDS = torch.randint(0, SHAPE["vocab_size"], (LENGTH,), generator=torch.Generator().manual_seed(4))
HIDDEN = torch.randn(LENGTH, SIZE, generator=torch.Generator().manual_seed(5))
POSITIONS = torch.arange(LENGTH)

# --- several, of Llama's family ---

FIRST = 7
CONFIG = TINY | {"architectures": ["LlamaForCausalLMNextN"], "num_nextn_predict_layers": 2}
NEAR = layers_rounding(CONFIG, LENGTH, times=2)


def tensors_of(*, own=False):
    shapes = {}
    for index in (FIRST, FIRST + 1):
        prefix = f"model.layers.{index}"
        shapes |= layer_shapes(prefix, CONFIG, 64) | {f"{prefix}.eh_proj.weight": (64, 128)}
        names = ("enorm", "hnorm", "input_layernorm", "shared_head.norm")
        shapes |= {f"{prefix}.{name}.weight": (64,) for name in names}
        if own:
            shapes |= {f"{prefix}.embed_tokens.weight": (97, 64), f"{prefix}.shared_head.head.weight": (97, 64)}
    return random_tensors(shapes)


def loaded(folder, target, tensors, **options):
    return load_mtp(write_head(folder, CONFIG | options, tensors), algorithm="MTP", target=target)


@pytest.mark.parametrize("own", [False, True], ids=["of-the-target", "of-its-own"])
@pytest.mark.usefixtures("tables")
def test_layers_compute_their_definition_each_with_keys_of_its_own(tmp_path, target, own):
    tensors, attention = tensors_of(own=own), DenseAttention()
    draft = loaded(tmp_path, target, tensors)
    for index in range(2):
        prefix = f"model.layers.{FIRST + index}"
        w = {name.removeprefix(f"{prefix}."): tensor.double() for name, tensor in tensors.items()}
        embedding = w.get("embed_tokens.weight", target.embedding.double())
        both = [rms_norm(embedding[IDS], w["enorm.weight"]), rms_norm(HIDDEN.double(), w["hnorm.weight"])]
        x = torch.cat(both, 1) @ w["eh_proj.weight"].T
        x = reference_layer(tensors, prefix, CONFIG, rms_norm(x, w["input_layernorm.weight"]), x)
        expected = rms_norm(x, w["shared_head.norm.weight"])
        with torch.inference_mode():
            hidden = draft.forward(index, IDS, POSITIONS, HIDDEN, attention)
            logits = draft.logits(index, hidden)
        head = w.get("shared_head.head.weight", target.lm_head.T.double())
        torch.testing.assert_close(hidden.double(), expected, **NEAR)
        torch.testing.assert_close(logits.double(), expected @ head.T, **NEAR)
    assert set(attention.keys) == {0, 1}


def test_geometry_and_lookahead_follow_the_number_of_layers(tmp_path, target):
    draft = loaded(tmp_path, target, tensors_of(), mtp_chain_hidden_states=True)
    assert (draft.num_layers, draft.lookahead, draft.chain_hidden_states) == (2, 2, True)
    assert (draft.num_heads, draft.num_kv_heads, draft.head_dim, draft.vocab_size) == (4, 2, 16, 97)
    assert (draft.hidden_size, draft.target_feature_size, draft.aux_layers) == (64, 64, ())
    assert [one.layer.layer_id for one in draft.layers] == [0, 1]


def test_wanted_rows_are_those_of_the_whole_and_all_leave_keys(tmp_path, target):
    draft, whole, part = loaded(tmp_path, target, tensors_of()), DenseAttention(), DenseAttention()
    wanted = torch.tensor([29, 4, 4])
    with torch.inference_mode():
        expected = draft.forward(1, IDS, POSITIONS, HIDDEN, whole)[wanted]
        found = draft.forward(1, IDS, POSITIONS, HIDDEN, part, wanted)
    torch.testing.assert_close(found, expected, **NEAR)  # other products of as many rows may round otherwise
    assert torch.equal(part.keys[1], whole.keys[1])


def test_the_targets_own_tensors_may_lie_beside(tmp_path, target):
    beside = {"model.layers.6.mlp.up_proj.weight": (96, 64), "model.norm.weight": (64,)}
    assert loaded(tmp_path, target, changed(tensors_of(), beside)).num_layers == 2


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"num_nextn_predict_layers": None}, {}, r"config\.json: num_nextn_predict_layers is missing"),
        ({"num_nextn_predict_layers": 3}, {}, r"tensor 'model\.layers\.9\..*' is missing"),
        ({"num_nextn_predict_layers": 1}, {}, r"tensor 'model\.layers\.8\..*' has no place in this architecture"),
        ({"mtp_chain_hidden_states": 1}, {}, "mtp_chain_hidden_states must be true or false, not 1"),
        ({"vocab_size": 98}, {}, "vocab_size 98 is not the target's 97; it drafts for another model"),
        ({"hidden_size": 32}, {}, "hidden_size 32 is not the target's 64"),
        ({"num_hidden_layers": 1}, {}, "num_hidden_layers 1 is not the target's 7"),
        ({}, {"model.layers.8.eh_proj.weight": (64, 64)}, r"has shape \[64, 64\], but config"),
        ({}, {"model.layers.7.self_attn.q_proj.bias": (64,)}, "has no place in this architecture"),
    ],
)
def test_layers_that_do_not_fit_are_one_line(tmp_path, target, options, changes, message):
    refused(tmp_path, message, loaded, target, changed(tensors_of(), changes), **options)


# --- one, of DeepSeek's ---

SPARSE = {"first_k_dense_replace": 3}  # the target's last layer, too, has experts
LATENT_NEAR = rounding(
    SIZE, SIZE, 2 * SIZE, SIZE, SIZE, 24, 32, 16, 40, LENGTH, 32, 96, SIZE, SIZE, 96, 64, SIZE, size=4.0
)
LAYER = ("self_attn.", "mlp.", "input_layernorm.", "post_attention_layernorm.")


@pytest.fixture
def latent_target(tmp_path):
    make_target(tmp_path / "target", **SPARSE)
    return load_target(tmp_path / "target")


@pytest.fixture
def layer_folder(tmp_path, latent_target):
    make_nextn(tmp_path / "draft", tmp_path / "target")
    return tmp_path / "draft"


def loaded_layer(folder, target, algorithm="EAGLE"):
    return load_draft(folder, algorithm=algorithm, target=target)


def attention(draft):
    return LatentAttention(draft.softmax_scale)


def expected_of_layer(folder, config, target, tensors):
    """Hidden and logits by the definition: eh_proj of both norms side by side, then transformers' own layer."""
    transformers = pytest.importorskip("transformers")
    prefix = f"model.layers.{config['num_hidden_layers']}."
    ours = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    one = {**config, "num_hidden_layers": 1, "first_k_dense_replace": 0 if "mlp.gate.weight" in ours else 1}
    settings = {key: one[key] for key in (*SHAPE, "rms_norm_eps", "rope_interleave")}
    model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**settings))
    folder.mkdir()
    embedding = ours.get("embed_tokens.weight", target.embedding)
    state = {f"model.layers.0.{name}": tensor for name, tensor in ours.items() if name.startswith(LAYER)}
    state |= {"model.norm.weight": ours["shared_head.norm.weight"], "model.embed_tokens.weight": target.embedding}
    state["lm_head.weight"] = ours.get("shared_head.head.weight", target.lm_head.t().contiguous())
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(model.config.to_json_string())
    model = type(model).from_pretrained(folder, dtype=torch.float32).eval()

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * ours[f"{name}.weight"]

    both = torch.cat((norm(embedding[IDS], "enorm"), norm(HIDDEN, "hnorm")), 1)
    with torch.no_grad():
        out = model(inputs_embeds=(both @ ours["eh_proj.weight"].T)[None], output_hidden_states=True)
    return out.hidden_states[-1][0], out.logits[0]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "experts"])
@pytest.mark.parametrize("own", [False, True], ids=["target-embedding-and-head", "own-embedding-and-head"])
@pytest.mark.usefixtures("tables")
def test_a_latent_layer_computes_its_definition(tmp_path, latent_target, sparse, own):
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    tensors = nextn_tensors(config, scale=1.0, sparse=sparse)
    if own:
        generator = torch.Generator().manual_seed(7)
        for name in ("embed_tokens", "shared_head.head"):
            drawn = torch.randn(SHAPE["vocab_size"], SIZE, generator=generator)
            tensors[f"model.layers.4.{name}.weight"] = drawn
    make_nextn(tmp_path / "draft", tmp_path / "target", sparse=sparse)
    save_file(tensors, tmp_path / "draft" / "model.safetensors")
    draft = loaded_layer(tmp_path / "draft", latent_target)
    hidden, logits = expected_of_layer(tmp_path / "reference", config, latent_target, tensors)
    with torch.inference_mode():
        found = draft.forward(IDS, POSITIONS, draft.project(HIDDEN), attention(draft))
        torch.testing.assert_close(found, hidden, **LATENT_NEAR)
        torch.testing.assert_close(draft.logits(found), logits, **LATENT_NEAR)


def test_geometry_is_its_own_and_a_step_continues_from_the_normed_output(layer_folder, latent_target):
    draft = loaded_layer(layer_folder, latent_target)
    assert isinstance(draft, NextnDraft)
    assert (draft.kv_layout, draft.num_layers, draft.num_heads, draft.num_kv_heads) == ("mla", 1, 4, 1)
    assert (draft.head_dim, draft.value_dim, draft.rotary_dim, draft.softmax_scale) == (40, 32, 8, 24**-0.5)
    assert (draft.hidden_size, draft.target_feature_size, draft.vocab_size, draft.aux_layers) == (64, 64, 61, ())
    assert draft.to_target_ids(IDS) is IDS
    remembered = attention(draft)
    with torch.inference_mode():
        prefilled = draft.forward(IDS[:30], POSITIONS[:30], HIDDEN[:30], remembered)
        stepped = draft.forward(IDS[30:31], POSITIONS[30:31], prefilled[-1:], remembered)
        inputs = torch.cat((HIDDEN[:30], prefilled[-1:]))
        whole = draft.forward(IDS[:31], POSITIONS[:31], inputs, attention(draft))
    torch.testing.assert_close(stepped[0], whole[30], **LATENT_NEAR)


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
def test_a_layer_that_does_not_fit_is_one_line(layer_folder, latent_target, config, tensors, message):
    told = json.loads((layer_folder / "config.json").read_text()) | {"first_k_dense_replace": 5} | config
    (layer_folder / "config.json").write_text(json.dumps(told))
    added = {f"model.layers.4.{name}": torch.zeros(shape) for name, shape in tensors.items()}
    file = layer_folder / "model.safetensors"
    save_file(load_file(file) | added, file)
    refused(layer_folder, message, loaded_layer, latent_target)


def test_a_layer_given_as_something_else_or_for_another_target_is_named(layer_folder, latent_target, target):
    with pytest.raises(InvalidOption, match=r"holds one next-n layer of a latent \(MLA\) model; set EAGLE$"):
        loaded_layer(layer_folder, latent_target, "EAGLE3")
    with pytest.raises(CheckpointError, match=r"'DeepseekV3ForCausalLMNextN'\] is none of LlamaForCausalLM"):
        load_target(layer_folder)
    refused(layer_folder, "vocab_size 61 is not the target's 97", loaded_layer, target)

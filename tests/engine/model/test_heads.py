"""EAGLE and EAGLE-3 heads and assistants under their published names, against the definition written out in f64."""

import pytest
import torch

from specdebug.base.errors import InvalidOption
from specdebug.engine.model.loader import load_assistant, load_draft, load_target
from specdebug.engine.model.models import AssistantDraft, Eagle3Draft, EagleDraft
from tests.engine.assistants import DenseAssistant
from tests.engine.model.helpers import (
    DenseAttention,
    attend,
    changed,
    layer_shapes,
    random_tensors,
    reference_layer,
    refused,
    rms_norm,
    write_head,
)
from tests.tolerance import layers_rounding

# config.json of yuhuili/EAGLE-LLaMA3-Instruct-8B, its sizes scaled to the tiny target
EAGLE = {
    "architectures": ["LlamaForCausalLM"],
    "bias": False,
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
    "vocab_size": 97,
}
# and that of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B and of SpecForge
EAGLE3 = EAGLE | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 24}
FLAT = {key: value for key, value in EAGLE3.items() if key != "draft_vocab_size"}
IDS = torch.randint(0, 97, (40,), generator=torch.Generator().manual_seed(3))
POSITIONS = torch.arange(40)
NEAR = layers_rounding(EAGLE, 40, times=3)  # two layers at most, the projections before and after them
HIDDEN = torch.randn(40, 64, generator=torch.Generator().manual_seed(4))
FEATURES = torch.randn(40, 192, generator=torch.Generator().manual_seed(4))


def load_eagle(folder, target, tensors, *, config=EAGLE, pickled=False, **options):
    return load_draft(write_head(folder, config, tensors, pickled=pickled), algorithm="EAGLE", target=target, **options)


def load_eagle3(folder, target, tensors, *, config=EAGLE3, pickled=False):
    return load_draft(write_head(folder, config, tensors, pickled=pickled), algorithm="EAGLE3", target=target)


def eagle_tensors(*, layers=1, embedding=True, fc_bias=False, first_norm=False):
    shapes = {"fc.weight": (64, 128)}
    shapes |= {"fc.bias": (64,)} if fc_bias else {}
    shapes |= {"embed_tokens.weight": (97, 64)} if embedding else {}
    for index in range(layers):
        shapes |= layer_shapes(f"layers.{index}", EAGLE, 64)
        if index or first_norm:
            shapes[f"layers.{index}.input_layernorm.weight"] = (64,)
    return random_tensors(shapes)


def eagle_reference(tensors, target_embedding, layers=1):
    embedding = tensors.get("embed_tokens.weight", target_embedding)
    both = torch.cat((embedding[IDS], HIDDEN), 1).double()
    x = both @ tensors["fc.weight"].double().T + tensors.get("fc.bias", torch.zeros(64)).double()
    for index in range(layers):
        norm = tensors.get(f"layers.{index}.input_layernorm.weight")
        normed = x if norm is None else rms_norm(x, norm.double())
        x = reference_layer(tensors, f"layers.{index}", EAGLE, normed, x)
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
@pytest.mark.usefixtures("tables")
def test_an_eagle_head_computes_its_definition(tmp_path, target, options, pickled):
    tensors = eagle_tensors(**options)
    layers = options.get("layers", 1)
    config = EAGLE | {"num_hidden_layers": layers}
    draft = load_eagle(tmp_path / "head", target, tensors, config=config, pickled=pickled)
    expected = eagle_reference(tensors, target.embedding, layers)
    with torch.inference_mode():
        hidden = draft.forward(IDS, POSITIONS, draft.project(HIDDEN), DenseAttention())
        logits = draft.logits(hidden)
    torch.testing.assert_close(hidden.double(), expected, **NEAR)
    torch.testing.assert_close(logits.double(), expected @ target.lm_head.double(), **NEAR)


def eagle3_tensors(*, prefix="midlayer", size=64, embedding=False, own_vocabulary=True):
    shapes = {
        "fc.weight": (size, 192),
        f"{prefix}.input_layernorm.weight": (size,),
        f"{prefix}.hidden_norm.weight": (size,),
        **layer_shapes(prefix, EAGLE3 | {"hidden_size": size}, 2 * size),
        "norm.weight": (size,),
    }
    shapes |= {"embed_tokens.weight": (97, size)} if embedding else {}
    if not own_vocabulary:
        return random_tensors(shapes)
    kept = torch.arange(24) * 4 + 1  # which target ids the draft vocabulary keeps
    listed = torch.zeros(97, dtype=torch.bool).index_fill(0, kept, True)
    tensors = random_tensors(shapes | {"lm_head.weight": (24, size)})
    return tensors | {"d2t": kept - torch.arange(24), "t2d": listed}


def check_eagle3(draft, tensors, target, config=EAGLE3, prefix="midlayer"):
    w = {name: tensor.double() for name, tensor in tensors.items()}
    hidden = FEATURES.double() @ w["fc.weight"].T
    normed_hidden = rms_norm(hidden, w[f"{prefix}.hidden_norm.weight"])
    embedding = w.get("embed_tokens.weight", target.embedding.double())
    normed_embedding = rms_norm(embedding[IDS], w[f"{prefix}.input_layernorm.weight"])
    residual = normed_hidden if config.get("norm_before_residual") else hidden
    expected = reference_layer(tensors, prefix, config, torch.cat((normed_embedding, normed_hidden), 1), residual)
    with torch.inference_mode():
        hidden = draft.forward(IDS, POSITIONS, draft.project(FEATURES), DenseAttention())
        logits = draft.logits(hidden)
    torch.testing.assert_close(hidden.double(), expected, **NEAR)
    head = w.get("lm_head.weight", target.lm_head.T.double())
    torch.testing.assert_close(logits.double(), rms_norm(expected, w["norm.weight"]) @ head.T, **NEAR)


@pytest.mark.parametrize("pickled", [True, False], ids=["bin", "safetensors"])
@pytest.mark.parametrize("embedding", [True, False], ids=["own-embedding", "target-embedding"])
@pytest.mark.usefixtures("tables")
def test_an_eagle3_head_computes_its_definition(tmp_path, target, embedding, pickled):
    tensors = eagle3_tensors(embedding=embedding)
    check_eagle3(load_eagle3(tmp_path / "head", target, tensors, pickled=pickled), tensors, target)


def test_speculators_layout_nests_the_config_and_norms_the_residual(tmp_path, target):
    tensors = eagle3_tensors(prefix="layers.0")
    nested = {"architectures": ["Eagle3Speculator"], "draft_vocab_size": 24, "transformer_layer_config": FLAT}
    draft = load_eagle3(tmp_path / "head", target, tensors, config=nested | {"norm_before_residual": True})
    check_eagle3(draft, tensors, target, EAGLE3 | {"norm_before_residual": True}, "layers.0")


def test_a_head_may_be_narrower_than_its_target(tmp_path, target):
    tensors = eagle3_tensors(size=32, embedding=True)
    config = EAGLE3 | {"hidden_size": 32, "target_hidden_size": 64}
    draft = load_eagle3(tmp_path / "head", target, tensors, config=config)
    assert (draft.hidden_size, draft.target_feature_size, draft.head_dim) == (32, 192, 8)
    check_eagle3(draft, tensors, target, config)


def test_without_a_vocabulary_of_its_own_the_targets_head_serves(tmp_path, target):
    tensors, before, ids = eagle3_tensors(own_vocabulary=False), target.lm_head.clone(), torch.tensor([0, 96])
    draft = load_eagle3(tmp_path / "head", target, tensors, config=FLAT)
    assert draft.vocab_size == 97
    assert draft.to_target_ids(ids) is ids
    check_eagle3(draft, tensors, target)
    assert torch.equal(target.lm_head, before)


def test_d2t_is_an_offset(tmp_path, target):
    draft = load_eagle3(tmp_path / "head", target, eagle3_tensors())
    assert draft.vocab_size == 24
    assert draft.to_target_ids(torch.tensor([[0, 1], [10, 23]])).tolist() == [[1, 5], [41, 93]]
    with pytest.raises(IndexError):
        draft.to_target_ids(torch.tensor([24]))


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
    draft = load_eagle3(tmp_path / "head", target, eagle3_tensors(), config=EAGLE3 | config)
    assert draft.aux_layers == layers


# --- assistants ---

ASSISTANT = FLAT | {
    "architectures": ["LlamaForCausalLMAssistant"],
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "target_kv_layers": [5, 2],
}
DRAW = torch.Generator().manual_seed(5)
TOKENS = torch.randint(0, 97, (3,), generator=DRAW)
ASKED_FROM = torch.tensor([11, 0, 300])
KEYS, VALUES = torch.randn(2, 7, 12, 2, 16, generator=DRAW)


class Stored:
    """The target's KV, which every row sees whole. Keys are stored in the engine's order of dimensions."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, *_: object) -> torch.Tensor:
        raise AssertionError("an assistant writes no KV")

    def attend(self, layer_id: int, q: torch.Tensor) -> torch.Tensor:
        self.asked.append(layer_id)
        keys = KEYS[layer_id].view(12, 2, 2, 8).transpose(2, 3).reshape(12, 2, 16)
        return torch.cat([attend(row[None], keys, VALUES[layer_id]) for row in q])


def assistant_tensors(*, fc_bias=False, embedding=False, head=False):
    shapes = {"fc.weight": (64, 128), "norm.weight": (64,)}
    shapes |= {"fc.bias": (64,)} if fc_bias else {}
    shapes |= {"embed_tokens.weight": (97, 64)} if embedding else {}
    shapes |= {"lm_head.weight": (97, 64)} if head else {}
    for index in range(2):
        layer = layer_shapes(f"layers.{index}", ASSISTANT, 64)
        shapes |= {name: shape for name, shape in layer.items() if "k_proj" not in name and "v_proj" not in name}
        shapes[f"layers.{index}.input_layernorm.weight"] = (64,)
    return random_tensors(shapes)


def load_frozen(folder, target, tensors, *, config=ASSISTANT):
    return load_assistant(write_head(folder, config, tensors), algorithm="FROZEN_KV_MTP", target=target)


@pytest.mark.parametrize(
    "options",
    [{}, {"fc_bias": True}, {"embedding": True}, {"head": True}],
    ids=["published", "fc-bias", "own-embedding", "own-head"],
)
def test_an_assistant_computes_its_definition(tmp_path, target, options):
    tensors, stored = assistant_tensors(**options), Stored()
    draft = load_frozen(tmp_path / "a", target, tensors)
    embedding = tensors.get("embed_tokens.weight", target.embedding)
    dense = DenseAssistant(ASSISTANT, tensors, embedding, tensors.get("lm_head.weight", target.lm_head.t()))
    with torch.inference_mode():
        hidden = draft.forward(TOKENS, ASKED_FROM, draft.project(HIDDEN[:3]), stored)
        logits = draft.logits(hidden)
    kv = list(zip(KEYS, VALUES, strict=True))
    rows = zip(TOKENS.tolist(), HIDDEN, ASKED_FROM.tolist(), strict=False)
    expected = torch.stack([dense.one_pass(token, row, kv, position) for token, row, position in rows])
    near = layers_rounding(ASSISTANT, 40, times=4)
    torch.testing.assert_close(hidden.double(), expected, **near)
    torch.testing.assert_close(logits.double(), torch.stack([dense.logits(row) for row in expected]), **near)
    assert stored.asked == [5, 2]


# --- all ---

MADE = [
    (load_eagle, eagle_tensors, {}, (EagleDraft, 1, 1, 4, 2, 16, 64, 64, 97, ())),
    (load_eagle3, eagle3_tensors, {}, (Eagle3Draft, 1, 1, 4, 2, 16, 64, 192, 24, (2, 3, 4))),
    (load_eagle3, eagle3_tensors, {"config": EAGLE3 | {"norm_before_residual": True}}, None),
    (load_frozen, assistant_tensors, {}, (AssistantDraft, 0, 0, 6, 2, 16, 64, 64, 97, ())),
]


@pytest.mark.parametrize(("load", "tensors", "options", "geometry"), MADE)
def test_geometry_and_what_it_is_given_stays_as_it_was(tmp_path, target, load, tensors, options, geometry):
    """A layer writes where its residual lay, which must not be the caller's hidden."""
    draft = load(tmp_path / "head", target, tensors(), **options)
    sizes = (draft.num_layers, draft.lookahead, draft.num_heads, draft.num_kv_heads, draft.head_dim)
    found = (type(draft), *sizes, draft.hidden_size, draft.target_feature_size, draft.vocab_size, draft.aux_layers)
    assert geometry is None or found == geometry
    hidden, attention = HIDDEN[:3].clone(), Stored() if load is load_frozen else DenseAttention()
    with torch.inference_mode():
        draft.forward(TOKENS, ASKED_FROM, hidden, attention)
    assert torch.equal(hidden, HIDDEN[:3])
    if draft.vocab_size == 97:
        assert draft.to_target_ids(TOKENS) is TOKENS


@pytest.mark.parametrize(
    ("load", "tensors", "features"), [(load_eagle, eagle_tensors, HIDDEN), (load_eagle3, eagle3_tensors, FEATURES)]
)
def test_a_recurrent_step_continues_the_sequence(tmp_path, target, load, tensors, features):
    """Prefill, then draft from the head's own hidden: what one pass over the same inputs computes."""
    draft, attention = load(tmp_path / "head", target, tensors()), DenseAttention()
    with torch.inference_mode():
        inputs = draft.project(features[:30])
        prefilled = draft.forward(IDS[:30], POSITIONS[:30], inputs, attention)
        stepped = draft.forward(IDS[30:31], POSITIONS[30:31], prefilled[-1:], attention)
        again = torch.cat((inputs, prefilled[-1:]))
        whole = draft.forward(IDS[:31], POSITIONS[:31], again, DenseAttention())
    torch.testing.assert_close(stepped[0], whole[30], **NEAR)


def test_positions_reach_as_far_as_the_targets(tmp_path, target):
    """Published heads state a far shorter limit than their target has."""
    last, tensors = torch.tensor([511]), eagle_tensors()
    with torch.inference_mode():
        load_eagle(tmp_path / "head", target, tensors).forward(IDS[:1], last, HIDDEN[:1], DenseAttention())
        short = load_eagle(tmp_path / "head", target, tensors, max_positions=100)
        with pytest.raises(IndexError):
            short.forward(IDS[:1], last, HIDDEN[:1], DenseAttention())


def test_the_head_runs_in_the_targets_dtype(tmp_path, target_folder):
    tensors = eagle_tensors()
    draft = load_eagle(tmp_path / "head", load_target(target_folder, dtype=torch.bfloat16), tensors)
    with torch.inference_mode():
        hidden = draft.forward(IDS, POSITIONS, HIDDEN.bfloat16(), DenseAttention())
    assert hidden.dtype == draft.logits(hidden).dtype == torch.bfloat16
    expected = eagle_reference(tensors, None)
    assert (hidden.double() - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        ({"vocab_size": 96}, {}, "vocab_size 96 is not the target's 97; it drafts for another model"),
        ({"hidden_size": 32}, {}, "hidden_size 32 is not the target's 64"),
        ({}, {"fc.weight": None}, "tensor 'fc.weight' is missing"),
        ({}, {"fc.weight": (64, 64)}, r"'fc.weight' has shape \[64, 64\], but config.json calls for \[64, 128\]"),
        ({}, {"layers.1.mlp.up_proj.weight": (96, 64)}, "tensor 'layers.1.mlp.up_proj.weight' has no place"),
        ({"num_hidden_layers": 2}, {}, "tensor 'layers.1.input_layernorm.weight' is missing"),
        ({}, {"embed_tokens.weight": (97, 32)}, "tensor 'embed_tokens.weight' has shape"),
    ],
)
def test_an_eagle_head_that_does_not_fit_is_one_line(tmp_path, target, config, changes, message):
    refused(tmp_path, message, load_eagle, target, changed(eagle_tensors(), changes), config=EAGLE | config)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
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
        ({}, {"fc_norm.0.weight": (64,)}, "tensor 'fc_norm.0.weight' has no place in this architecture"),
        ({}, {"fc.weight": torch.zeros(64, 192, dtype=torch.int8)}, "tensor 'fc.weight' is int8; convert"),
        ({"hidden_size": 32}, {}, "32"),
    ],
)
def test_an_eagle3_head_that_does_not_fit_is_one_line(tmp_path, target, config, changes, message):
    refused(tmp_path, message, load_eagle3, target, changed(eagle3_tensors(), changes), config=EAGLE3 | config)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        ({"num_key_value_heads": 3}, {}, "num_key_value_heads 3 is not the target's 2"),
        ({"head_dim": 32}, {}, "head_dim 32 is not the target's 16"),
        ({"hidden_size": 32}, {}, "hidden_size 32 is not the target's 64"),
        ({"vocab_size": 96}, {}, "vocab_size 96 is not the target's 97"),
        ({"rope_theta": 5e5}, {}, "rope_theta 500000.0 is not the target's 10000.0; it assists another model"),
        ({"attention_bias": True}, {}, "attention_bias true is not supported"),
        ({"target_kv_layers": None}, {}, "target_kv_layers must be a list of layer numbers, not None"),
        ({"target_kv_layers": [1, "2"]}, {}, "target_kv_layers must be a list of layer numbers"),
        ({"target_kv_layers": [1]}, {}, "target_kv_layers names 1 layers for num_hidden_layers 2"),
        ({"target_kv_layers": [1, 7]}, {}, r"target_kv_layers holds 7, and the target's layers are 0\.\.6"),
        ({"target_kv_layers": [-1, 2]}, {}, "target_kv_layers holds -1"),
        ({}, {"layers.2.self_attn.q_proj.weight": (1,)}, r"'layers\.2\.self_attn\.q_proj\.weight' has no place"),
        ({}, {"norm.weight": None}, r"'norm\.weight' is missing"),
    ],
)
def test_an_assistant_that_does_not_fit_is_one_line(tmp_path, target, config, changes, message):
    tensors = changed(assistant_tensors(), changes)
    refused(tmp_path, message, load_frozen, target, tensors, config=ASSISTANT | config)


def test_a_draft_of_another_kind_is_named(tmp_path, target):
    own = dict.fromkeys(("layers.0.self_attn.k_proj.weight", "layers.0.self_attn.v_proj.weight"), (32, 64))
    for load, tensors, problem in (
        (load_eagle3, eagle_tensors(), r"speculative\.algorithm: .* holds an EAGLE head; set EAGLE$"),
        (load_eagle, eagle3_tensors(), r"speculative\.algorithm: .* holds an EAGLE-3 head; set EAGLE3$"),
        (load_eagle, eagle3_tensors(prefix="layers.0"), "holds an EAGLE-3 head; set EAGLE3$"),
        (load_frozen, changed(assistant_tensors(), own), r"FROZEN_KV_MTP drafts with .*, and .* holds an EAGLE head"),
    ):
        with pytest.raises(InvalidOption, match=problem):
            load(tmp_path / "head", target, tensors)

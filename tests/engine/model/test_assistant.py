"""Assistants under their published names, against the definition written out in f64; folders that do not fit."""

from __future__ import annotations

import pytest
import torch

from specdebug.base.errors import CheckpointError, InvalidOption
from specdebug.engine.model import AssistantDraft, load_assistant, load_target
from tests.engine.assistants import DenseAssistant
from tests.engine.model.helpers import attend, layer_shapes, make_target, random_tensors, write_head
from tests.tolerance import layers_rounding

CONFIG = {
    "architectures": ["LlamaForCausalLMAssistant"],
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "vocab_size": 97,
    "target_kv_layers": [5, 2],
}
NEAR = layers_rounding(CONFIG, 40, times=4)
DRAW = torch.Generator().manual_seed(5)
TOKENS = torch.randint(0, 97, (3,), generator=DRAW)
POSITIONS = torch.tensor([11, 0, 300])
HIDDEN = torch.randn(3, 64, generator=DRAW)
KEYS = torch.randn(7, 12, 2, 16, generator=DRAW)
VALUES = torch.randn(7, 12, 2, 16, generator=DRAW)


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


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    make_target(folder)
    return load_target(folder)


def assistant_tensors(*, fc_bias=False, embedding=False, head=False):
    shapes = {"fc.weight": (64, 128), "norm.weight": (64,)}
    shapes |= {"fc.bias": (64,)} if fc_bias else {}
    shapes |= {"embed_tokens.weight": (97, 64)} if embedding else {}
    shapes |= {"lm_head.weight": (97, 64)} if head else {}
    for index in range(2):
        prefix = f"layers.{index}"
        layer = layer_shapes(prefix, CONFIG, 64)
        shapes |= {name: shape for name, shape in layer.items() if "k_proj" not in name and "v_proj" not in name}
        shapes[f"{prefix}.input_layernorm.weight"] = (64,)
    return random_tensors(shapes)


def load(folder, target, config=CONFIG, tensors=None, algorithm="FROZEN_KV_MTP"):
    return load_assistant(
        write_head(folder, config, assistant_tensors() if tensors is None else tensors),
        algorithm=algorithm,
        target=target,
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"fc_bias": True}, {"embedding": True}, {"head": True}],
    ids=["published", "fc-bias", "own-embedding", "own-head"],
)
def test_hidden_and_logits_equal_the_definition(tmp_path, target, options):
    tensors = assistant_tensors(**options)
    draft, stored = load(tmp_path / "a", target, tensors=tensors), Stored()
    embedding = tensors.get("embed_tokens.weight", target.embedding)
    dense = DenseAssistant(CONFIG, tensors, embedding, tensors.get("lm_head.weight", target.lm_head.t()))
    with torch.inference_mode():
        hidden = draft.forward(TOKENS, POSITIONS, draft.project(HIDDEN), stored)
        logits = draft.logits(hidden)
    kv = list(zip(KEYS, VALUES, strict=True))
    rows = zip(TOKENS.tolist(), HIDDEN, POSITIONS.tolist(), strict=True)
    expected = torch.stack([dense.one_pass(token, row, kv, position) for token, row, position in rows])
    torch.testing.assert_close(hidden.double(), expected, **NEAR)
    torch.testing.assert_close(logits.double(), torch.stack([dense.logits(row) for row in expected]), **NEAR)
    assert stored.asked == [5, 2]


def test_geometry(tmp_path, target):
    draft = load(tmp_path / "a", target)
    assert isinstance(draft, AssistantDraft)
    assert (draft.num_layers, draft.lookahead) == (0, 0)
    assert (draft.num_heads, draft.num_kv_heads, draft.head_dim) == (6, 2, 16)
    assert (draft.hidden_size, draft.target_feature_size, draft.vocab_size, draft.aux_layers) == (64, 64, 97, ())
    ids = torch.tensor([[0, 96]])
    assert draft.to_target_ids(ids) is ids


def test_what_is_given_stays_as_it_was(tmp_path, target):
    draft, hidden = load(tmp_path / "a", target), HIDDEN.clone()
    with torch.inference_mode():
        draft.forward(TOKENS, POSITIONS, hidden, Stored())
    assert torch.equal(hidden, HIDDEN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 is not the target's 2"),
        ({"head_dim": 32}, "head_dim 32 is not the target's 16"),
        ({"hidden_size": 32}, "hidden_size 32 is not the target's 64"),
        ({"vocab_size": 96}, "vocab_size 96 is not the target's 97"),
        ({"rope_theta": 5e5}, "rope_theta 500000.0 is not the target's 10000.0"),
        ({"attention_bias": True}, "attention_bias true is not supported"),
        ({"target_kv_layers": None}, "target_kv_layers must be a list of layer numbers, not None"),
        ({"target_kv_layers": [1, "2"]}, "target_kv_layers must be a list of layer numbers"),
        ({"target_kv_layers": [1]}, "target_kv_layers names 1 layers for num_hidden_layers 2"),
        ({"target_kv_layers": [1, 7]}, r"target_kv_layers holds 7, and the target's layers are 0\.\.6"),
        ({"target_kv_layers": [-1, 2]}, "target_kv_layers holds -1"),
    ],
)
def test_a_config_that_does_not_fit_the_target_is_refused(tmp_path, target, changes, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path / "a", target, config={**CONFIG, **changes})
    assert str(caught.value).startswith(str(tmp_path / "a" / "config.json"))
    assert "\n" not in str(caught.value)


def test_tensors_without_a_place_and_missing_ones_are_named(tmp_path, target):
    with pytest.raises(CheckpointError, match=r"'layers\.2\.self_attn\.q_proj\.weight' has no place"):
        load(tmp_path / "a", target, tensors=assistant_tensors() | {"layers.2.self_attn.q_proj.weight": torch.ones(1)})
    tensors = assistant_tensors()
    del tensors["norm.weight"]
    with pytest.raises(CheckpointError, match=r"'norm\.weight' is missing"):
        load(tmp_path / "b", target, tensors=tensors)


def test_keys_and_values_of_its_own_make_it_a_head(tmp_path, target):
    own = {
        name: torch.ones(32, 64) for name in ("layers.0.self_attn.k_proj.weight", "layers.0.self_attn.v_proj.weight")
    }
    with pytest.raises(InvalidOption, match=r"FROZEN_KV_MTP drafts with .*, and .* holds an EAGLE head"):
        load(tmp_path / "a", target, tensors=assistant_tensors() | own)

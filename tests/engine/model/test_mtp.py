"""Next-n layers under their published names, against the definition written out in f64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specdebug.base.errors import CheckpointError
from specdebug.engine.model import draft as draft_module
from specdebug.engine.model import load_target
from specdebug.engine.model.llama import TargetModel
from specdebug.engine.model.mtp import MTPDraft
from specdebug.engine.model.mtp_loader import load_mtp
from tests.engine.model.helpers import (
    TINY,
    DenseAttention,
    layer_shapes,
    make_target,
    random_tensors,
    reference_layer,
    rms_norm,
    write_head,
)
from tests.tolerance import layers_rounding

FIRST = 7
CONFIG = TINY | {"architectures": ["LlamaForCausalLMNextN"], "num_nextn_predict_layers": 2}
IDS = torch.randint(0, 97, (30,), generator=torch.Generator().manual_seed(3))
POSITIONS = torch.arange(30)
HIDDEN = torch.randn(30, 64, generator=torch.Generator().manual_seed(4))
NEAR = layers_rounding(CONFIG, 30, times=2)


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    make_target(folder)
    return folder


@pytest.fixture(scope="module")
def target(target_folder: Path) -> TargetModel:
    return load_target(target_folder)


def tensors_of(*, own: bool = False) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {}
    for index in (FIRST, FIRST + 1):
        prefix = f"model.layers.{index}"
        shapes |= layer_shapes(prefix, CONFIG, 64) | {f"{prefix}.eh_proj.weight": (64, 128)}
        names = ("enorm", "hnorm", "input_layernorm", "shared_head.norm")
        shapes |= {f"{prefix}.{name}.weight": (64,) for name in names}
        if own:
            shapes |= {f"{prefix}.embed_tokens.weight": (97, 64), f"{prefix}.shared_head.head.weight": (97, 64)}
    return random_tensors(shapes)


def loaded(folder: Path, target: TargetModel, tensors: dict[str, Tensor], **options: Any) -> MTPDraft:
    return load_mtp(write_head(folder / "layers", CONFIG | options, tensors), algorithm="MTP", target=target)


@pytest.mark.parametrize("own", [False, True], ids=["of-the-target", "of-its-own"])
@pytest.mark.parametrize("table_bytes", [0, draft_module.MAX_TABLE_BYTES], ids=["computed", "tabulated"])
def test_hidden_and_logits_equal_the_definition(
    tmp_path: Path, target: TargetModel, own: bool, table_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_module, "MAX_TABLE_BYTES", table_bytes)
    tensors = tensors_of(own=own)
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
            hidden = draft.forward(index, IDS, POSITIONS, HIDDEN, DenseAttention())
            logits = draft.logits(index, hidden)
        head = w.get("shared_head.head.weight", target.lm_head.T.double())
        torch.testing.assert_close(hidden.double(), expected, **NEAR)
        torch.testing.assert_close(logits.double(), expected @ head.T, **NEAR)


def test_geometry_and_lookahead_follow_the_number_of_layers(tmp_path: Path, target: TargetModel) -> None:
    draft = loaded(tmp_path, target, tensors_of(), mtp_chain_hidden_states=True)
    assert (draft.num_layers, draft.lookahead, draft.chain_hidden_states) == (2, 2, True)
    assert (draft.num_heads, draft.num_kv_heads, draft.head_dim, draft.vocab_size) == (4, 2, 16, 97)
    assert (draft.hidden_size, draft.target_feature_size, draft.aux_layers) == (64, 64, ())
    assert [one.layer.layer_id for one in draft.layers] == [0, 1]


def test_wanted_rows_are_those_of_the_whole_and_all_leave_keys(tmp_path: Path, target: TargetModel) -> None:
    draft, whole, part = loaded(tmp_path, target, tensors_of()), DenseAttention(), DenseAttention()
    wanted = torch.tensor([29, 4, 4])
    with torch.inference_mode():
        expected = draft.forward(1, IDS, POSITIONS, HIDDEN, whole)[wanted]
        found = draft.forward(1, IDS, POSITIONS, HIDDEN, part, wanted)
    torch.testing.assert_close(found, expected, **NEAR)  # other products of as many rows may round otherwise
    assert torch.equal(part.keys[1], whole.keys[1])


def test_each_layer_writes_its_own_keys_and_values(tmp_path: Path, target: TargetModel) -> None:
    draft, attention = loaded(tmp_path, target, tensors_of()), DenseAttention()
    for index in range(2):
        draft.forward(index, IDS, POSITIONS, HIDDEN, attention)
    assert set(attention.keys) == {0, 1}


def test_the_targets_own_tensors_may_lie_beside(tmp_path: Path, target: TargetModel) -> None:
    beside = {"model.layers.6.mlp.up_proj.weight": torch.ones(96, 64), "model.norm.weight": torch.ones(64)}
    assert loaded(tmp_path, target, tensors_of() | beside).num_layers == 2


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({"num_nextn_predict_layers": None}, {}, r"config\.json: num_nextn_predict_layers is missing"),
        ({"num_nextn_predict_layers": 3}, {}, r"tensor 'model\.layers\.9\..*' is missing"),
        ({"num_nextn_predict_layers": 1}, {}, r"tensor 'model\.layers\.8\..*' has no place in this architecture"),
        ({"mtp_chain_hidden_states": 1}, {}, "mtp_chain_hidden_states must be true or false, not 1"),
        ({"vocab_size": 98}, {}, "vocab_size 98 is not the target's 97; it drafts for another model"),
        ({"hidden_size": 32}, {}, "hidden_size 32 is not the target's 64"),
        ({"num_hidden_layers": 1}, {}, "num_hidden_layers 1 is not the target's 7"),
        ({}, {"model.layers.8.eh_proj.weight": torch.ones(64, 64)}, r"has shape \[64, 64\], but config"),
        ({}, {"model.layers.7.self_attn.q_proj.bias": torch.ones(64)}, "has no place in this architecture"),
    ],
)
def test_what_is_no_checkpoint_of_such_layers_is_refused(
    tmp_path: Path, target: TargetModel, options: dict[str, Any], change: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        loaded(tmp_path, target, tensors_of() | change, **options)

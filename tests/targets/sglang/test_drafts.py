"""Drafts that are made: the same each time, sharp where they look, and in the layouts that SGLang loads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import CheckpointError
from specdebug.targets.sglang import drafts


@pytest.fixture
def little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "ROWS", 2)
    monkeypatch.setattr(drafts, "LENGTH", 16)


@pytest.mark.usefixtures("little_text")
def test_a_made_draft_is_the_same_each_time_and_taken_where_it_is_there(tmp_path: Path) -> None:
    one, two = (drafts.block_draft("tiny-dspark", tmp_path / name) for name in ("one", "two"))
    assert one is not None
    assert two is not None
    digests = [hashlib.sha256((each / "model.safetensors").read_bytes()).digest() for each in (one, two)]
    assert digests[0] == digests[1]
    assert one.name == two.name
    made = (one / "model.safetensors").stat().st_mtime_ns
    assert drafts.block_draft("tiny-dspark", tmp_path / "one") == one
    assert (one / "model.safetensors").stat().st_mtime_ns == made
    tensors = load_file(one / "model.safetensors")
    assert tensors["layers.0.self_attn.o_proj.weight"].shape == (256, 1024)
    assert tensors["markov_head.markov_w1.weight"].shape == (2048, 8)
    corrected = tensors["markov_head.markov_w1.weight"] @ tensors["markov_head.markov_w2.weight"].T
    assert corrected.abs().max() > 1  # a logit of a token is another behind another token


def test_other_names_are_no_made_drafts_and_other_targets_are_refused(tmp_path: Path) -> None:
    assert drafts.block_draft("tiny-eagle", tmp_path) is None
    assert drafts.block_draft("dflash", tmp_path) is None
    with pytest.raises(CheckpointError, match="a block draft is made for a Llama"):
        drafts.block_draft("tiny-mla-dflash", tmp_path)


@pytest.mark.usefixtures("little_text")
@pytest.mark.parametrize("ending", drafts.LAYOUTS)
def test_each_head_sees_the_token_at_one_distance(tmp_path: Path, ending: str) -> None:
    made = drafts.block_draft(f"tiny-{ending}", tmp_path)
    assert made is not None
    tensors = load_file(made / "model.safetensors")
    turns = drafts.THETA ** (-torch.arange(32) / 32)

    def rotated(name: str, row: int, position: int) -> torch.Tensor:
        one = tensors[f"layers.0.self_attn.{name}_proj.bias"].view(-1, 64)[row]
        one = one / one.pow(2).mean().sqrt() * tensors[f"layers.0.self_attn.{name}_norm.weight"]
        cos, sin = (position * turns).cos(), (position * turns).sin()
        return torch.cat((one[:32] * cos - one[32:] * sin, one[32:] * cos + one[:32] * sin))

    first = drafts.LAYOUTS[ending].first
    for head in range(2 * drafts.REACH):
        kv_head, distance = head // drafts.REACH, first + head % drafts.REACH
        query = rotated("q", head, 200)
        scores = torch.stack([query @ rotated("k", kv_head, 200 - back) / 8 for back in range(-3, 200)])
        assert int(scores.argmax()) - 3 == distance
        assert float(scores.softmax(0).max()) > 0.999


def test_a_next_n_layer_becomes_a_mixture_of_which_only_the_shared_expert_says_something(tmp_path: Path) -> None:
    source = checkpoint_path("tiny-mla-eagle")
    made = drafts.sglangs_folder(source, tmp_path)
    config = json.loads((made / "config.json").read_text())
    assert config["moe_layer_freq"] == 1
    assert config["first_k_dense_replace"] == 12
    ours, theirs = load_file(source / "model.safetensors"), load_file(made / "model.safetensors")
    layer = "model.layers.12.mlp"
    assert torch.equal(theirs[f"{layer}.shared_experts.up_proj.weight"], ours[f"{layer}.up_proj.weight"])
    assert not any(bool(each.any()) for name, each in theirs.items() if ".experts." in name)
    assert theirs[f"{layer}.gate.weight"].shape == (4, 256)
    target = drafts.sglangs_folder(checkpoint_path("tiny-mla"), tmp_path)
    assert json.loads((target / "config.json").read_text())["moe_layer_freq"] == 1
    assert (target / "model.safetensors").is_symlink()
    assert drafts.sglangs_folder(checkpoint_path("tiny"), tmp_path) == checkpoint_path("tiny")

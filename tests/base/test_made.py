"""Checkpoints that are made: the same each time, whole or not at all, with successors, and drafts cut from targets."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from specdebug.base import assets, made
from specdebug.base.errors import CheckpointError


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "specdebug" / "checkpoints"


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_it_is_made_once_with_a_tokenizer_and_is_the_same_elsewhere(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = assets.checkpoint_path("tiny-windows")
    assert one.parent == cache
    assert (one / "tokenizer.json").read_bytes() == (assets.CHECKPOINTS / "tiny" / "tokenizer.json").read_bytes()
    written = (one / "model.safetensors").stat().st_mtime_ns
    assert assets.checkpoint_path("tiny-windows") == one
    assert (one / "model.safetensors").stat().st_mtime_ns == written
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "other"))
    other = assets.checkpoint_path("tiny-windows")
    assert other != one
    assert (other.name, digest(other)) == (one.name, digest(one))
    assert [each.name for each in cache.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("name", made.MADE)
def test_every_token_has_one_successor_and_they_are_one_cycle(name: str) -> None:
    tensors = load_file(assets.checkpoint_path(name) / "model.safetensors")
    following = (tensors["model.embed_tokens.weight"] @ tensors["lm_head.weight"].T).argmax(-1)
    seen, token = set(), 0
    while token not in seen:
        seen.add(token)
        token = int(following[token])
    assert len(seen) == made.VOCAB


@pytest.mark.parametrize("name", [name for name, each in made.MADE.items() if each.cut])
def test_a_draft_has_the_first_layers_of_its_target(name: str) -> None:
    draft, target = (assets.checkpoint_path(each) for each in (name, name.removesuffix("-draft")))
    config, ours, theirs = json.loads((draft / "config.json").read_text()), *map(tensors_of, (draft, target))
    assert config["num_hidden_layers"] == len(config["layer_types"]) == made.MADE[name].cut
    assert ours.keys() < theirs.keys()
    assert all(np.array_equal(each, theirs[name]) for name, each in ours.items())


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def test_what_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match=r"'tiny-windows' cannot be made: .*file.*: "):
        assets.checkpoint_path("tiny-windows")
    assert made.made_checkpoint("tiny", tmp_path) is None

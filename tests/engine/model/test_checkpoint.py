"""Broken checkpoint folders: each way ends in one line that names the file, the tensor and what to do."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdebug.base.errors import CheckpointError
from specdebug.engine.model.checkpoint import Checkpoint
from specdebug.engine.model.loader import load_target
from tests.engine.model.helpers import changed, make_target


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """One good target in a single file, one in shards; tests break copies."""
    root = tmp_path_factory.mktemp("pristine")
    make_target(root / "single")
    make_target(root / "sharded", shard_size="60KB")
    return root


@pytest.fixture
def folder(pristine, tmp_path):
    return shutil.copytree(pristine / "single", tmp_path / "target")


@pytest.fixture
def sharded(pristine, tmp_path):
    return shutil.copytree(pristine / "sharded", tmp_path / "target")


def complaint(folder):
    with pytest.raises(CheckpointError) as caught:
        load_target(folder)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(folder))
    return text


def edit_tensors(folder, changes):
    file = folder / "model.safetensors"
    save_file(changed(load_file(file), changes), file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "config.json is missing; give a Hugging Face checkpoint folder"),
        (b"{", "config.json is not JSON: "),
        (b"[]", "config.json holds a list, not a JSON object"),
        (b"\xff\xfe", "config.json cannot be read"),
        (b"[" * 100_000, "config.json is not JSON: "),
    ],
)
def test_a_config_that_is_no_json_object(folder, content, message):
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_bytes(content)
    assert message in complaint(folder)


def test_a_config_that_is_a_folder_and_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "holds no weights: none of model.safetensors, model.safetensors.index.json" in complaint(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "config.json cannot be read" in complaint(folder)


@pytest.mark.parametrize("length", [0, 4, 200, -1])
def test_truncated_safetensors(folder, length):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    assert "model.safetensors is truncated or not safetensors" in complaint(folder)


def test_garbage_safetensors(folder):
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "is truncated or not safetensors" in complaint(folder)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("model.layers.3.mlp.up_proj.weight", None, "is missing; fetch"),
        ("model.norm.weight", (63,), "has shape [63], but config.json calls for [64]"),
        ("model.layers.7.mlp.up_proj.weight", (96, 64), "has no place in this architecture"),
        ("model.layers.0.self_attn.q_proj.bias", (64,), "has no place"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_its_file(folder, name, shape, message):
    edit_tensors(folder, {name: None if shape is None else torch.zeros(shape)})
    assert f"tensor '{name}' {message}" in complaint(folder)


def test_a_bias_that_the_config_mentions_must_be_there(folder):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"attention_bias": True}))
    assert "q_proj.bias' is missing" in complaint(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float8_e4m3fn, torch.float64])
def test_a_dtype_that_is_no_weight(folder, dtype):
    edit_tensors(folder, {"model.norm.weight": torch.ones(64).to(dtype)})
    name = str(dtype).removeprefix("torch.")
    assert f"'model.norm.weight' is {name}; convert the weights to bf16, fp16 or fp32" in complaint(folder)


def test_leftovers_of_old_transformers_are_ignored(folder):
    edit_tensors(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": (8,)})
    load_target(folder)


def test_a_tied_checkpoint_may_carry_the_copy(tmp_path):
    make_target(tmp_path, tie_word_embeddings=True)
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    edit_tensors(tmp_path, {"lm_head.weight": embedding.clone()})
    load_target(tmp_path)


def test_a_truncated_shard_and_a_missing_one(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[2]
    shard.write_bytes(shard.read_bytes()[:-10])
    assert f"{shard.name} is truncated" in complaint(sharded)
    shard.unlink()
    assert f"{shard.name} is missing; fetch the checkpoint again" in complaint(sharded)


def test_a_tensor_that_its_shard_lacks(sharded):
    index = sharded / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    shards = sorted(set(data["weight_map"].values()))
    wrong = next(shard for shard in shards if shard != data["weight_map"]["lm_head.weight"])
    data["weight_map"]["lm_head.weight"] = wrong
    index.write_text(json.dumps(data))
    assert f"{wrong}: tensor 'lm_head.weight' is missing, but {index.name} puts it here" in complaint(sharded)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(
            (content, "index.json has no weight_map")
            for content in ("{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}')
        ),
        (
            '{"weight_map": {"a": "../../etc/passwd"}}',
            "names the shard '../../etc/passwd', which is not a file beside it",
        ),
    ],
)
def test_an_index_without_a_map_or_one_that_leads_out_of_the_folder(sharded, content, message):
    (sharded / "model.safetensors.index.json").write_text(content)
    assert message in complaint(sharded)


def to_bin(folder, content=None):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors if content is None else content, folder / "pytorch_model.bin")


def test_a_pickled_state_dict_gives_the_same_model(folder):
    before = load_target(folder)
    to_bin(folder)
    after = load_target(folder)
    assert torch.equal(before.embedding, after.embedding)
    assert torch.equal(before.layers[6][1].qkv, after.layers[6][1].qkv)


@pytest.mark.parametrize("length", [0, 100, 5000, -100])
def test_a_truncated_pickle(folder, length):
    to_bin(folder)
    file = folder / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:length])
    assert "pytorch_model.bin is truncated or not a plain state dict" in complaint(folder)


def test_a_pickle_that_would_run_code_is_refused(folder, tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    to_bin(folder, {"a": Trap()})
    assert "is truncated or not a plain state dict" in complaint(folder)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}])
def test_a_pickle_that_is_no_state_dict(folder, content):
    to_bin(folder, content)
    assert "save the model's state_dict() alone" in complaint(folder)


def test_tensors_are_read_when_asked_for(folder, monkeypatch):
    checkpoint = Checkpoint(folder)
    assert "model.norm.weight" in checkpoint
    (source,) = set(checkpoint._sources.values())
    monkeypatch.setattr(type(source), "tensor", lambda self, name: pytest.fail(f"{name} was read"))
    with pytest.raises(CheckpointError, match="has shape"):
        checkpoint.floats("model.norm.weight", 1)

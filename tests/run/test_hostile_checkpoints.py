"""A checkpoint that cannot be read says nothing of the engine: whatever is wrong with it, CheckpointError names it."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specdebug.base.assets import CHECKPOINTS, checkpoint_path
from specdebug.base.errors import CheckpointError
from specdebug.cli.main import run
from specdebug.engine.model.loader import load_target
from specdebug.reference.weights import load_weights
from specdebug.scenario.library import Library
from specdebug.scenario.text import load_tokenizer

COMMAND = "\x1b]0;T\x07\x1b[31m\nerror: \u202e" + "x" * 5000
"""A name that would set a terminal's title and colour, and print an error line of its own."""
NUMBER = b'{"hidden_size": ' + b"9" * 5000 + b"}"
DEEP = b'{"a": ' * 100_000
WEIGHTS, PICKLED = "model.safetensors", "pytorch_model.bin"

Change = Callable[[Path], None]


def content(name: str, data: bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return change


def setting(**values: Any) -> Change:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return change


def kind(name: str, make: Callable[[Path], object]) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def pickled(content: object) -> Change:
    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        torch.save(content, folder / PICKLED)

    return change


def index(data: bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / f"{WEIGHTS}.index.json").write_bytes(data)
        save_file({"other": torch.ones(1)}, folder / "twin")
        os.mkfifo(folder / "shard")
        (folder / "folder").mkdir()

    return change


def header(data: bytes) -> Change:
    return content(WEIGHTS, len(data).to_bytes(8, "little") + data)


def one_more(name: str) -> Change:
    """Put a tensor of this name, which no model has, beside the others."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()  # it may be a link
        save_file({**tensors, name: torch.ones(1)}, folder / WEIGHTS)

    return change


NESTED: Any = json.loads("[" * 300 + "]" * 300)
HOSTILE: dict[str, Change] = {
    **{
        f"config {name}": content("config.json", data)
        for name, data in {
            "of 5,000 digits": NUMBER,
            "nested": DEEP,
            "empty": b"",
            "truncated": b'{"hidden_size": 2',
            "no UTF-8": b'{"a": "\xff"}',
            "UTF-16": '{"a": 1}'.encode("utf-16"),
            "of a list": b"[]",
            "of NULs": bytes(100),
        }.items()
    },
    "config pipe": kind("config.json", os.mkfifo),
    "config folder": kind("config.json", Path.mkdir),
    "config link to itself": kind("config.json", lambda path: path.symlink_to(path)),
    **{
        f"config {key} {json.dumps(value)[:12]}": setting(**{key: value})
        for key in ("hidden_size", "num_hidden_layers", "head_dim", "vocab_size", "num_key_value_heads", "rms_norm_eps")
        for value in (10**400, -1, "64", NESTED, float("nan"))
    },
    "config architectures": setting(architectures=NESTED),
    "config rope": setting(rope_parameters=[1]),
    "config rope kind": setting(rope_parameters={"rope_type": "x" * 10_000}),
    "config act": setting(hidden_act=NESTED),
    "config eos": setting(eos_token_id=[10**400]),
    "config head_dim that takes all memory": setting(head_dim=2**31 - 2),
    **{
        f"weights {name}": content(WEIGHTS, data)
        for name, data in {
            "empty": b"",
            "short": b"\x10",
            "huge header": b"\xff" * 64,
            "text": b"oid sha256:0\n",
        }.items()
    },
    "weights of an unknown dtype": header(b'{"a":{"dtype":"X9","shape":[1],"data_offsets":[0,1]}}'),
    "weights nested": header(DEEP),
    "weights beyond their end": header(b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'),
    "weights pipe": kind(WEIGHTS, os.mkfifo),
    "weights folder": kind(WEIGHTS, Path.mkdir),
    "weights device": kind(WEIGHTS, lambda path: path.symlink_to("/dev/zero")),
    "weights nowhere": kind(WEIGHTS, lambda path: path.symlink_to("nowhere")),
    **{
        f"index {name}": index(data)
        for name, data in {
            "of 5,000 digits": NUMBER,
            "nested": DEEP,
            "no UTF-8": b"\xff",
            "of a list": b"[]",
            "of a pipe": b'{"weight_map": {"a": "shard"}}',
            "of a folder": b'{"weight_map": {"a": "folder"}}',
            "of a NUL": b'{"weight_map": {"a": "a\\u0000"}}',
            "of a surrogate": b'{"weight_map": {"a": "\\ud800"}}',
            "of nothing": b'{"weight_map": {"a": ""}}',
        }.items()
    },
    "weights of a name that commands a terminal": one_more(COMMAND),
    "weights of a dtype and a name that command a terminal": header(
        json.dumps({COMMAND: {"dtype": COMMAND, "shape": [1], "data_offsets": [0, 1]}}).encode()
    ),
    "index of a shard that commands a terminal": index(json.dumps({"weight_map": {"a": COMMAND}}).encode()),
    "index of a tensor that commands a terminal": index(json.dumps({"weight_map": {COMMAND: "twin"}}).encode()),
    "pickle of a name that commands a terminal": pickled({COMMAND: torch.ones(1)}),
    "config rope kind that commands a terminal": setting(rope_parameters={"rope_type": COMMAND}),
    "config act that commands a terminal": setting(hidden_act=COMMAND),
    "config architecture that commands a terminal": setting(architectures=[COMMAND]),
    "pickle of other names": pickled({1: torch.ones(2)}),
    "pickle of a sparse tensor": pickled({"model.norm.weight": torch.eye(2).to_sparse()}),
    "pickle of a meta tensor": pickled({"model.norm.weight": torch.ones(2, device="meta")}),
    "pickle of a list": pickled([1]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(CHECKPOINTS / "tiny", tmp_path / "target")


def complaint(read: Callable[[], object]) -> str:
    with pytest.raises(CheckpointError) as caught:
        read()
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 800
    return text


@pytest.mark.parametrize("name", HOSTILE)
def test_the_engine_and_the_reference_name_the_file(name: str, folder: Path) -> None:
    HOSTILE[name](folder)
    text = complaint(lambda: load_target(checkpoint_path(folder)))
    assert text.startswith(str(folder))
    with contextlib.suppress(CheckpointError):  # it reads less of a folder than the engine, so it may take some
        load_weights(folder)


@pytest.mark.parametrize("data", [b"", b"[1]", b"\xff", b'{"model": {}}', b"[" * 100_000, b"9" * 5000])
def test_a_tokenizer_that_is_none(data: bytes, folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(data)
    assert "is not a tokenizer" in complaint(lambda: load_tokenizer(str(folder)))


def test_a_tokenizer_that_is_no_file(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    assert "tokenizer.json is missing" in complaint(lambda: load_tokenizer(str(folder)))


@pytest.mark.parametrize("size", [1, 2])
def test_a_tokenizer_of_another_model(size: int, folder: Path) -> None:
    """What its ids exceed is the model's vocabulary, which must be said before one of them reaches an embedding."""
    Tokenizer(WordLevel({"a": 0, "\x1bb": 2}, unk_token="a")).save(str(folder / "tokenizer.json"))
    setting(vocab_size=size)(folder)
    text = complaint(lambda: load_tokenizer(str(folder)))
    assert text.startswith(f"{folder / 'tokenizer.json'} has ids up to 2 ('\\u001bb')")
    assert f"vocab_size is {size}; fetch the tokenizer of this model" in text


def test_a_replay_with_the_tokenizer_of_another_model_is_no_failure(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting(vocab_size=100)(folder)
    file = folder / "s.yaml"
    file.write_text(
        f"name: s\nengine: {{model: {folder}}}\nworkload: [{{id: a, prompt: {{text: b c}}}}]\narms: {{x: {{}}}}\n"
    )
    assert run(["replay", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {folder / 'tokenizer.json'} has ids up to")


def test_a_tokenizer_that_cannot_encode(folder: Path) -> None:
    Tokenizer(WordLevel({"a": 0}, unk_token="gone")).save(str(folder / "tokenizer.json"))
    file = folder / "s.yaml"
    file.write_text(
        f"name: s\nengine: {{model: {folder}}}\nworkload: [{{id: a, prompt: {{text: b c}}}}]\narms: {{x: {{}}}}\n"
    )
    library = Library()
    scenario = library.scenario(file)
    assert "cannot encode a prompt" in complaint(lambda: library.workload(scenario, "x", 0))


@pytest.mark.parametrize("name", [name for name in HOSTILE if "command" in name])
def test_no_name_in_a_checkpoint_commands_the_terminal(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    HOSTILE[name](folder)
    file = folder / "s.yaml"
    file.write_text(
        f"name: s\nengine: {{model: {folder}}}\n"
        "workload: [{id: a, prompt: {token_ids: [1, 2]}}]\narms: {x: {}}\nexpect: {x: {verdict: pass}}\n"
    )
    assert run(["replay", str(file)]) in (2, 125)
    out, err = capsys.readouterr()
    assert out + err
    assert [char for char in out + err if char != "\n" and not char.isprintable()] == []
    assert "\nerror: x" not in out + err


def test_a_null_in_a_config_is_a_key_that_is_absent(folder: Path) -> None:
    """As transformers and the engine read it; the reference must not stumble over what the engine takes."""
    setting(num_key_value_heads=None, eagle_config=None, rms_norm_eps=None, rope_theta=None)(folder)
    config = load_weights(folder)[1]
    assert config.num_kv_heads == config.num_heads
    assert config.rms_norm_eps == 1e-6

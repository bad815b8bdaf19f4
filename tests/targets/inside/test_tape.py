"""What an engine's process writes of its batches and requests, and when it stops writing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specdebug.targets.inside import tape as module
from specdebug.targets.inside.tape import Tape, TapeFile, kept


def test_tensors_are_written_while_a_batch_is_computed_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "t"
    tape = Tape(TapeFile(str(path)))
    tape.add("verify.logits", torch.ones(2))
    assert not path.exists()
    tape.begin(1, "speculative", ["a", "b"])
    tape.add("verify.logits", torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16))
    tape.add("verify.input_ids", torch.arange(6)[::2])
    tape.end()
    tape.add("verify.logits", torch.ones(2))
    tape.ended("a", 1)
    data = path.read_bytes()
    head, rest = data.split(b"\n", 1)
    assert json.loads(head) == {"batch": 1, "kind": "speculative", "rids": ["a", "b"], "lens": []}
    line, rest = rest.split(b"\n", 1)
    facts = {"site": "verify.logits", "dtype": "bfloat16", "numpy": "<f4", "shape": [1, 2], "bytes": 8}
    assert json.loads(line) == facts
    assert torch.frombuffer(bytearray(rest[:8]), dtype=torch.float32).tolist() == [1.0, 2.0]
    line, rest = rest[8:].split(b"\n", 1)
    assert json.loads(line)["shape"] == [3]
    assert torch.frombuffer(bytearray(rest[:24]), dtype=torch.int64).tolist() == [0, 2, 4]
    assert json.loads(rest[24:]) == {"ended": "a", "decodes": 1}


@pytest.mark.parametrize("where", ["full", "no/such/folder"])
def test_no_room_ends_the_recording_and_not_the_engine(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "LARGEST", 100)
    tape = Tape(TapeFile(str(tmp_path / where)))
    tape.begin(1, "plain", ["a"])
    tape.add("target_decode.logits", torch.ones(64))
    assert not tape.recording
    tape.end()
    tape.begin(2, "plain", ["a"])
    tape.ended("a", 2)
    said = capsys.readouterr().err
    assert said.count("recording ends") == 1
    assert str(tmp_path / where) in said


def test_what_is_kept_is_a_copy() -> None:
    copy = kept(buffer := torch.zeros(2))
    buffer += 1
    assert copy.tolist() == [0.0, 0.0]

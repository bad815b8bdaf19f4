"""What an engine's process remembers of a request, and the file that it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdebug.targets.inside.looks import Looks, kept, looks_folder


def test_a_file_appears_when_a_request_has_ended_and_holds_its_events_in_order(tmp_path: Path) -> None:
    folder = looks_folder(str(tmp_path / "server.log"))
    looks = Looks(folder)
    looks.add("a", {"what": "prefilled", "chunk": 1})
    looks.add("b", {"what": "prefilled"})
    looks.add("a", {"what": "prefilled", "chunk": 2})
    looks.add("a", {"what": "verified", "logits": torch.arange(3.0)})
    looks.extend("a", {"stores": {"seq_len": 4}})
    assert not folder.exists()
    looks.end("a", {"draft_k": torch.ones(1, 2)})
    assert [each.name for each in folder.iterdir()] == ["a.look"]
    look = torch.load(folder / "a.look", weights_only=True)
    prefilled, verified = look["events"]
    assert prefilled == {"what": "prefilled", "chunk": 2}
    assert verified["logits"].tolist() == [0.0, 1.0, 2.0]
    assert verified["stores"] == {"seq_len": 4}
    assert look["kv"]["draft_k"].shape == (1, 2)


def test_an_aborted_request_leaves_nothing(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    looks.add("a", {"what": "prefilled"})
    looks.forget("a")
    looks.extend("a", {"stores": {}})
    looks.end("a", {})
    assert torch.load(tmp_path / "a.look", weights_only=True) == {"events": [], "kv": {}}


def test_no_room_ends_the_looking_and_not_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looks = Looks(tmp_path / "no" / "such")
    for rid in ("a", "b"):
        looks.add(rid, {"what": "prefilled"})
        looks.end(rid, {})
    said = capsys.readouterr().err
    assert said.count("looking ends") == 1
    assert "No such file or directory" in said


def test_a_copy_does_not_change_with_what_it_is_of() -> None:
    buffer = torch.zeros(2)
    copy = kept(buffer)
    buffer += 1
    assert copy.tolist() == [0.0, 0.0]

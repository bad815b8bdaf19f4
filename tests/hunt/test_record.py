"""The record of a hunt: what is kept, what is read again, and whose it is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from specdebug.hunt.record import RECORD, HuntRecord, Judged, RecordError

ABOUT = {"target": "embedded", "seed": 0, "reverts": []}


def record(folder: Path) -> HuntRecord:
    return HuntRecord(folder, ABOUT)


def test_what_was_judged_is_there_again(tmp_path: Path) -> None:
    first = record(tmp_path / "new")
    ones = [Judged(0, "pass", tokens=9), Judged(2, "fail", "a@b", "words"), Judged(1, "fail", "a@b", "others")]
    for one in ones:
        first.add(one)
    again = record(tmp_path / "new")
    assert again.judged == {one.number: one for one in ones}
    assert [one.number for one in again.findings["a@b"]] == [1, 2]
    assert (again.count("fail"), again.count("unknown")) == (2, 0)


def test_a_line_that_was_cut_off_is_run_again_and_the_rest_is_kept(tmp_path: Path) -> None:
    first = record(tmp_path)
    first.add(Judged(0, "pass"))
    first.add(Judged(1, "pass"))
    path = tmp_path / RECORD
    path.write_bytes(path.read_bytes()[:-9])
    again = record(tmp_path)
    assert set(again.judged) == {0}
    again.add(Judged(1, "fail", "x@y"))
    assert set(record(tmp_path).judged) == {0, 1}


def test_a_record_of_another_hunt_is_refused(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(RecordError, match=r"is of another hunt \(target embedded, seed 0, reverts \[\]\)"):
        HuntRecord(tmp_path, {**ABOUT, "seed": 1})
    (tmp_path / RECORD).write_text("nonsense\n{}\n")
    with pytest.raises(RecordError, match=f"{RECORD}:1: is no record of a hunt"):
        record(tmp_path)


def test_no_room_is_told_with_the_file_and_says_nothing_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = record(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match=r"cannot write .*00004.yaml: No space") as caught:
        held.write("00004.yaml", "name: x")
    assert caught.value.exit_code == 125
    with pytest.raises(RecordError, match=RECORD):
        held.add(Judged(4, "fail"))
    assert held.judged == {}


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"cannot use .*file"):
        record(tmp_path / "file")

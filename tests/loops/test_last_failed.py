"""The record of arms that failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from specdebug.loops.last_failed import NAME, LastFailed
from specdebug.loops.replay import ArmResult, ArmRun
from specdebug.scenario.load import load_scenario
from specdebug.scenario.model import Expectation
from specdebug.verdict.outcome import Outcome

MINI = Path(__file__).parents[1] / "cli" / "mini.yaml"
SCENARIO = load_scenario(MINI)


def result(arm: str, verdict: Any, expected: Any = "pass") -> ArmResult:
    expectation = None if expected is None else Expectation(expected)
    return ArmResult(ArmRun(arm, SCENARIO, arm, 0, expectation=expectation), Outcome(verdict, None, None, "", None))


def test_an_arm_stays_until_it_does_as_it_should(tmp_path: Path) -> None:
    def failed() -> dict[str, list[str]]:
        return LastFailed.read(tmp_path).arms

    LastFailed.read(tmp_path).update([result("fixed", "fail"), result("plain", "unknown")], lambda: None)
    assert failed() == {str(MINI.resolve()): ["fixed", "plain"]}
    LastFailed.read(tmp_path).update([result("fixed", "pass"), result("positions", "fail", "fail")], lambda: None)
    assert failed() == {str(MINI.resolve()): ["plain"]}
    record = LastFailed.read(tmp_path)
    assert record.has(result("plain", "pass").run)
    assert not record.has(result("fixed", "pass").run)
    assert record.files == (str(MINI.resolve()),)
    LastFailed.read(tmp_path).update([result("plain", "pass", None)], lambda: None)
    assert failed() == {}
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


def test_nothing_is_written_where_nothing_ever_failed(tmp_path: Path) -> None:
    def no_folder() -> None:
        pytest.fail("there is nothing to keep")

    LastFailed.read(tmp_path / "new").update([result("fixed", "pass")], no_folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"a": 1}', '"x"', "\xff"])
def test_a_record_that_nobody_can_read_is_empty(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text, encoding="latin-1")
    assert LastFailed.read(tmp_path).arms == {}


def test_a_folder_that_cannot_be_written_costs_only_the_record(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    LastFailed.read(tmp_path / "file").update([result("fixed", "fail")], lambda: None)
    assert LastFailed.read(tmp_path / "file").arms == {}


def test_a_disk_that_is_full_leaves_no_half_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str, **options: Any) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    LastFailed.read(tmp_path).update([result("positions", "fail")], lambda: None)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_gone_are_not_offered(tmp_path: Path) -> None:
    assert LastFailed(tmp_path, {str(tmp_path / "gone.yaml"): ["x"], str(MINI): ["y"]}).files == (str(MINI),)

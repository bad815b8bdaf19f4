"""The record of arms that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specdebug.campaign.loops.replay import ArmResult, ArmRun
from specdebug.campaign.loops.replays import NAME, LastFailed, keep_failed
from specdebug.scenario.checks import load_scenario
from specdebug.scenario.grammar import Expectation
from specdebug.verdict.outcome import Outcome
from specdebug.workers.records import RecordError
from tests.workers.disks import full

MINI = Path(__file__).parents[2] / "cli" / "mini.yaml"
SCENARIO = load_scenario(MINI)


def result(arm: str, verdict: Any, expected: Any = "pass") -> ArmResult:
    expectation = None if expected is None else Expectation(expected)
    return ArmResult(ArmRun(arm, SCENARIO, arm, 0, expectation=expectation), Outcome(verdict, None, None, "", None))


def keep(folder: Path, *results: ArmResult) -> str:
    return keep_failed(folder, results, lambda: None)


def test_an_arm_stays_until_it_does_as_it_should(tmp_path: Path) -> None:
    def failed() -> dict[str, list[str]]:
        return LastFailed.read(tmp_path).arms

    keep(tmp_path, result("fixed", "fail"), result("plain", "unknown"))
    assert failed() == {str(MINI.resolve()): ["fixed", "plain"]}
    keep(tmp_path, result("fixed", "pass"), result("positions", "fail", "fail"))
    assert failed() == {str(MINI.resolve()): ["plain"]}
    record = LastFailed.read(tmp_path)
    assert record.has(result("plain", "pass").run)
    assert not record.has(result("fixed", "pass").run)
    assert record.files == (str(MINI.resolve()),)
    keep(tmp_path, result("plain", "pass", None))
    assert failed() == {}
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


def test_nothing_is_written_where_nothing_ever_failed(tmp_path: Path) -> None:
    def no_folder() -> None:
        pytest.fail("there is nothing to keep")

    assert keep_failed(tmp_path / "new", [result("fixed", "pass")], no_folder) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"a": 1}', '{"a": [1]}', '"x"', "\xff"])
def test_a_damaged_record_is_named_and_made_anew_by_the_next_replay(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text, encoding="latin-1")
    with pytest.raises(RecordError, match=rf"{NAME}.*: the record of failures is damaged: .*; remove it") as caught:
        LastFailed.read(tmp_path)
    assert caught.value.exit_code == 2
    assert "is damaged" in keep(tmp_path, result("fixed", "fail"))
    assert LastFailed.read(tmp_path).arms == {str(MINI.resolve()): ["fixed"]}


def test_a_folder_that_cannot_be_written_costs_only_the_record(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot write the record of failures" in keep(tmp_path / "file", result("fixed", "fail"))
    assert LastFailed.read(tmp_path / "file").arms == {}


def test_a_disk_that_is_full_leaves_the_record_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, result("fixed", "fail"))
    with full(monkeypatch, 99):
        assert "No space left" in keep(tmp_path, result("positions", "fail"))
    assert [file.name for file in tmp_path.iterdir()] == [NAME]
    assert LastFailed.read(tmp_path).arms == {str(MINI.resolve()): ["fixed"]}


def test_files_that_are_gone_are_not_offered(tmp_path: Path) -> None:
    assert LastFailed({str(tmp_path / "gone.yaml"): ["x"], str(MINI): ["y"]}).files == (str(MINI),)

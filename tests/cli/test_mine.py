"""specdebug toggles mine: fixes in git become toggles, or the reason is told."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from specdebug.cli.main import run
from specdebug.patching.toggles import load_toggle
from tests.apps.mining.checkout import FIXED, checkout, commit


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two fixes, and between them a commit that changes no code."""
    top = checkout(tmp_path)
    commit(top, "pool.py", FIXED, "Rows need room (#101)")
    commit(top, "NOTES", "why\n", "words")
    commit(top, "pool.py", FIXED.replace("topk, server_args", "topk=1, server_args=None"), "default topk (#102)")
    return top


def test_a_range_becomes_toggles_and_what_cannot_is_told(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["toggles", "mine", "--repo", str(top), "--range", "HEAD~3..HEAD", "-o", "mined"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("2 of 3 fixes are toggles in mined/toggles\n")
    assert re.search(r"[0-9a-f]{10}: commit [0-9a-f]{10} changes no Python file", err)
    assert sorted(file.name for file in Path("mined/toggles").iterdir()) == ["101.yaml", "102.yaml"]
    assert run(["toggles", "validate", "mined/toggles/101.yaml", "mined/toggles/102.yaml"]) == 0
    assert load_toggle(Path("mined/toggles/101.yaml")).title == "Rows need room (#101)"


@pytest.mark.parametrize("asked", [["--pr", "101"], ["--commit", "HEAD~2"]])
def test_one_fix_is_named_by_its_number_or_its_commit(top: Path, asked: list[str]) -> None:
    assert run(["toggles", "mine", "--repo", str(top), *asked]) == 0
    assert [file.name for file in Path("toggles").iterdir()] == ["101.yaml"]


def test_nothing_is_written_over_unasked(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["toggles", "mine", "--repo", str(top), "--pr", "101"]
    assert run(words) == 0
    Path("toggles/101.yaml").write_text("mine")
    assert run(words) == 1
    assert ("--force" in capsys.readouterr().err, Path("toggles/101.yaml").read_text()) == (True, "mine")
    assert run([*words, "--force"]) == 0
    assert Path("toggles/101.yaml").read_text() != "mine"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "needs one of --commit, --range and --pr"),
        (["--commit", "HEAD", "--pr", "101"], "needs one of --commit, --range and --pr"),
        (["--range", "HEAD"], "a range is written A..B"),
        (["--range", "HEAD..HEAD"], "there is no commit in it"),
        (["--range", "nowhere..HEAD"], "--range nowhere: no such commit"),
        (["--pr", "999"], r"has \(#999\) in its subject"),
        (["--commit", "HEAD", "--scenario", "cache_hit"], "--scenario is for --prove"),
        (["--commit", "HEAD", "--target", "embedded"], "it takes an installed release"),
        (["--commit", "HEAD", "--prove"], "--prove needs --target"),
    ],
)
def test_what_cannot_be_asked_is_refused(top: Path, refused: Callable[..., str], words: list[str], told: str) -> None:
    assert re.search(told, refused("toggles", "mine", "--repo", str(top), *words))

"""``specdebug hunt`` as a user meets it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdebug.campaign.trials import state
from specdebug.cli.main import run


def test_it_goes_on_where_it_was_and_says_what_was_searched(tmp_path: Path, told: Callable[..., Any]) -> None:
    folder = str(tmp_path / "h")
    found = told("hunt", "-o", folder, "--count", "1")
    assert (found["searched"], found["verdicts"]["pass"], found["findings"]) == (1, 1, [])
    assert told("hunt", "-o", folder, "--count", "2")["searched"] == 2
    page = (tmp_path / "h" / "report.md").read_text()
    assert "2 scenarios on embedded" in page
    assert "Nothing failed." in page


FOUND = "oob@draft.forward.positions"


def test_a_fix_taken_out_is_found_and_its_scenario_fails_when_it_is_replayed(
    tmp_path: Path, told: Callable[..., Any]
) -> None:
    folder = tmp_path / "h"
    hunted = ("hunt", "-o", str(folder), "--count", "1", "--seed", "3", "--revert", "25015", "--small", "3")
    found = told(*hunted, code=1)
    finding = next(each for each in found["findings"] if each["signature"] == FOUND)
    first, bundle, issue = finding["scenarios"][0], Path(finding["bundle"]), Path(finding["issue"])
    page = (folder / "report.md").read_text()
    assert f"## {FOUND}" in page
    assert "--arm drawn --target embedded --revert 25015" in page
    assert f"To paste upstream: {issue.name}." in page
    assert run(["replay", str(folder / f"{first:05d}.yaml"), "--arm", "drawn", "--revert", "25015", "--no-locate"]) == 1
    again = told("replay", str(bundle), code=1)
    assert (again["bundle"]["status"], again["arms"][0]["signature"]) == ("exact", FOUND)
    said = issue.read_text()
    assert said.startswith(f"# {FOUND} on embedded\n\n- `{FOUND}` at step ")
    assert f"specdebug replay {bundle.name}" in said
    assert "specdebug hunt -o h --count 1 --seed 3 --revert 25015" in said
    assert "\n| torch | " in said
    assert "```yaml\n" in said
    assert str(tmp_path) not in said
    before = bundle.stat().st_mtime_ns
    assert told(*hunted, code=1)["findings"] == found["findings"]
    assert (bundle.stat().st_mtime_ns, issue.read_text()) == (before, said)  # nothing was run again


def test_a_folder_of_before_a_change_is_refused_or_gone_on_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("hunt", "-o", str(tmp_path / "h"), "--count", "1", "--small", "0")
    assert run(asked) == 0
    version = state.__version__
    monkeypatch.setattr(state, "__version__", "9.9.9")
    capsys.readouterr()
    assert run(asked) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: specdebug: {version} -> 9.9.9: this is another hunt; --resume-anyway goes on with ")
    assert "the 1 judged before, kept in " in said
    assert run([*asked, "--resume-anyway"]) == 0
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "before" in line)
    assert (
        said == f"going on with 1 scenario of before a change, as --resume-anyway says (specdebug: {version} -> 9.9.9)"
    )


def test_what_cannot_be_asked(refused: Callable[..., str], tmp_path: Path) -> None:
    asked = ("hunt", "-o", str(tmp_path))
    assert "did you mean 'embedded'?" in refused(*asked, "--target", "embeded")
    assert run([*asked, "--count", "1", "--small", "0"]) == 0
    assert "is of another hunt" in refused(*asked, "--count", "1", "--seed", "1")

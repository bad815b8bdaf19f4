"""A fix that no toggle has is mined from a checkout for one run: ``run`` and ``replay`` with ``--repo``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specdebug.cli.main import run
from specdebug.patching.toggles import load_toggle
from tests.apps.mining.checkout import FIXED, checkout, commit

JOB = "import sys\nfrom toy.pool import room\nsys.exit(1 if room(4, 2, 3) < 12 else 0)\n"


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a fix, picked from another branch, and another that has no code of the package."""
    top = checkout(tmp_path)
    commit(top, "pool.py", FIXED, "Rows need room (#101) (#102)")
    commit(top, "NOTES", "why\n", "words (#103)")
    (top / "job.py").write_text(JOB)
    return top


def ran(top: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specdebug", "run", *words, "--", sys.executable, str(top / "job.py")]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("number", ["101", "102"])
def test_a_command_runs_without_the_fix_and_its_lines_are_counted(top: Path, number: str) -> None:
    assert ran(top).returncode == 0
    done = ran(top, "--revert", number, "--repo", str(top), "--record", "told.json")
    assert (done.returncode, f"{number}: Rows need room" in done.stderr) == (1, True), done.stderr
    told = json.loads(Path("told.json").read_text())
    assert sum(told["reverted"][number]["hits"].values()) > 0 if "reverted" in told else number in json.dumps(told)
    assert load_toggle(Path(f".specdebug/mined/toggles/{number}.yaml")).pr == int(number)


def test_a_number_that_the_registry_has_is_not_mined(top: Path) -> None:
    commit(top, "pool.py", FIXED + "\n\nX = 1\n", "another (#27338)")
    done = ran(top, "--revert", "27338", "--repo", str(top))
    assert (done.returncode, Path(".specdebug/mined").exists()) == (125, False)


@pytest.mark.parametrize(
    ("number", "why"),
    [("999", "(#999) in its subject, nor is 999 a commit there"), ("103", "changes no Python file")],
)
@pytest.mark.parametrize("words", [["replay", "cache_hit"], ["run"]])
def test_what_cannot_be_mined_is_told(
    top: Path, number: str, why: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    after = ["--", "true"] if words == ["run"] else []
    assert run([*words, "--revert", number, "--repo", str(top), *after]) == 2
    assert why in capsys.readouterr().err


def test_a_fix_of_another_engine_is_not_in_the_embedded_one(
    top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLANG_DEBUG_REVERT_PR", "101")
    assert run(["replay", "cache_hit", "--repo", str(top)]) == 2
    assert "101 is a fix in toy" in capsys.readouterr().err

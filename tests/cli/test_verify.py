"""``specdebug toggles verify -- CMD``, in a folder with a package, its fixes and a job."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run
from tests.patching.hook.test_hooked_runs import FIX, POOL

FAILS_NARROW = "import sys\nfrom toyspec.pool import width\nsys.exit(7 if width(4, 2) < 8 else 0)\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """501 makes the job fail, it never runs a line of 502, and 503 is of a version that is not there."""
    idle = FIX.replace("501", "502").replace("pool:width", "pool:idle").replace("page * topk", "topk")
    for name, text in {
        "toyspec/__init__.py": "",
        "toyspec/pool.py": POOL + "\n\ndef idle(page, topk):\n    return topk\n",
        "job.py": FAILS_NARROW,
        "mine/toggles/501.yaml": FIX,
        "mine/toggles/502.yaml": idle.replace('replacement: "return page"', 'replacement: "return -topk"'),
        "mine/toggles/503.yaml": FIX.replace("501", "503").replace("page * topk", "topk * page"),
    }.items():
        Path(tmp_path, name).parent.mkdir(parents=True, exist_ok=True)
        Path(tmp_path, name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SPECDEBUG_PATH", "mine")


def verify(capsys: pytest.CaptureFixture[str], *argv: str, code: int, job: str = FAILS_NARROW) -> dict[str, Any]:
    Path("job.py").write_text(job)
    assert run(["toggles", "verify", *argv, "--json", "--", sys.executable, "job.py"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == code
    return found


def states(found: dict[str, Any]) -> dict[int, str]:
    return {each["pr"]: each["state"] for each in found["toggles"]}


def test_a_fix_that_the_command_needs_is_live_and_its_failure_is_seen_again(capsys: pytest.CaptureFixture[str]) -> None:
    found = verify(capsys, "501", code=0)
    (fix,) = found["toggles"]
    assert (fix["state"], fix["trials"], found["applied"]) == ("live", 1, {"trials": 5, "of": 5, "bad": None})
    assert fix["shown_by"]["signature"] == "exit:7"
    words = fix["shown_by"]["reproduce"].replace("specdebug run", f"{sys.executable} -m specdebug run")
    assert subprocess.run(["sh", "-c", words], capture_output=True).returncode == 7


def test_one_whose_lines_never_ran_is_not_tried_and_one_that_does_not_fit_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = verify(capsys, code=125)
    assert states(found) == {501: "live", 502: "not tried"}
    assert [each["trials"] for each in found["toggles"]] == [1, 5]
    assert list(found["left"]) == ["503"]
    found = verify(capsys, "501", "503", "27338", code=125)
    assert states(found) == {501: "live", 503: "not tried", 27338: "not tried"}


def test_one_that_ran_and_was_not_noticed_is_rotten_and_a_failure_that_ran_no_line_of_it_shows_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = verify(capsys, "501", "--seeds", "2", code=1, job="from toyspec.pool import width\nwidth(4, 2)\n")
    assert (states(found), found["toggles"][0]["silent"]) == ({501: "rotten"}, 2)
    fails_by_chance = (
        "import os, sys, toyspec.pool\nopen('runs', 'a').write('x')\nsys.exit(os.path.getsize('runs') > 2)\n"
    )
    found = verify(capsys, "501", "--seeds", "2", code=125, job=fails_by_chance)
    assert states(found) == {501: "not tried"}


@pytest.mark.parametrize(("status", "code", "outcome"), [(9, 1, "fail"), (125, 125, "untestable")])
def test_a_command_that_does_not_pass_as_it_is_verifies_nothing(
    status: int, code: int, outcome: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = verify(capsys, "501", code=code, job=f"import sys, toyspec.pool\nsys.exit({status})\n")
    assert (found["applied"]["trials"], found["applied"]["bad"]["outcome"], found["toggles"]) == (1, outcome, [])


def test_without_proof_a_fix_can_be_shown_and_none_is_said_to_be_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    asks = "import os, sys\nsys.exit(os.environ.get('SGLANG_DEBUG_REVERT_PR') == '27338')\n"
    found = verify(capsys, "27338", "27360", "--no-proof", "--seeds", "1", code=125, job=asks)
    assert (states(found), found["proof"]) == ({27338: "live", 27360: "not tried"}, "waived")
    assert verify(capsys, "27338", "--no-proof", code=0, job=asks)["toggles"][0]["trials"] == 1


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--", "true"], 125, "it imports no package that one edits"),
        (["501", "--", "python", "-I", "job.py"], 2, "or say --no-proof"),
        (["504", "--", "true"], 2, "no toggle reverts 504"),
        (["--device", "cpu", "--", "true"], 2, "--device is for scenarios"),
        (["--no-locate", "--", "true"], 2, "--no-locate is for scenarios"),
        (["--no-proof", "501"], 2, "--no-proof is for a command"),
        (["--timeout", "3", "501"], 2, "--timeout is for a command"),
        (["--timeout", "0", "--", "true"], 2, "--timeout must be above 0"),
        (["--", "./nothing"], 2, "there is no command ./nothing"),
    ],
)
def test_what_cannot_be_done_is_said(
    argv: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["toggles", "verify", *argv]) == code
    assert words in capsys.readouterr().err

"""``specdebug flake`` as a user meets it, over a command that fails as told."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run

FAILS = 'case ",$SGLANG_DEBUG_REVERT_PR," in *,27360,*) (( SPECDEBUG_TRIAL_SEED % 10 < 3 )) && exit 7;; esac; exit 0'
"""30% of the time, while fix 27360 is reverted."""


def flake(capsys: pytest.CaptureFixture[str], *argv: str, script: str = FAILS) -> tuple[int, str, str]:
    code = run(["flake", *argv, "--", "bash", "-c", script])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], *argv: str, script: str = FAILS) -> tuple[int, dict[str, Any]]:
    code, out, _ = flake(capsys, *argv, "--json", script=script)
    return code, json.loads(out)


def test_clean_runs_are_owed_and_paid(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = flake(capsys, "--claim", "rate<5%", "--max-trials", "40")
    assert code == 125
    assert out.startswith(
        "undecided, --max-trials is reached: 0 of 40 failed: rate < 7.2% at 95%; "
        "19 more clean runs are owed before `rate<5%` can be claimed\n"
    )
    assert "0 of 20 failed: rate < 13.9% at 95%; 39 more clean runs are owed" in err
    code, out, err = flake(capsys, "--claim", "rate<5%")
    assert code == 0
    assert out.startswith("`rate<5%` holds at 95%: 0 of 59 failed: rate < 5.0% at 95%\n")
    assert err.startswith("resumed: 40 trials are in .specdebug/flake-")


def test_failures_refute_and_say_how_to_see_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "--no-proof", "--revert", "27360", "--claim", "rate<5% or rate>20%")
    assert (code, found["exit_code"], found["holds"], found["reverted"]) == (1, 1, False, ["27360"])
    (seen,) = found["signatures"]
    assert (seen["signature"], seen["failures"]) == ("exit:7", found["failures"])
    assert seen["seed"] % 10 < 3
    again = subprocess.run(["bash", "-c", seen["reproduce"]], check=False)
    assert again.returncode == 7


def test_other_failures_and_untestable_runs_are_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        'case $((SPECDEBUG_TRIAL_SEED % 3)) in 0) exit 125;; 1) echo "nan@draft.hidden here"; exit 1;; *) exit 3; esac'
    )
    code, out, _ = flake(capsys, "--signature", "nan@*", "--max-trials", "12", script=script)
    assert code == 1
    assert "x nan@draft.hidden, first with seed" in out
    assert "failed in another way, which is no verdict on these:" in out
    assert "untestable, which is no verdict:" in out
    code, out, _ = flake(capsys, script="echo no such GPU; exit 125")
    assert code == 125
    assert out.startswith("no trial could be tested: no run has come to a verdict\n")
    assert "untestable, which is no verdict: 20 times\n  the first said: no such GPU\n" in out


def test_a_file_that_cannot_be_written_costs_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["flake", "--max-trials", "2", "--json-file", "/dev/full", "--junit", "junit.xml", "--", "true"]
    assert run(argv) == 125
    out, err = capsys.readouterr()
    assert out.startswith("--max-trials is reached: 0 of 2 failed")
    assert err.endswith("error: cannot write /dev/full: No space left on device\n")
    assert Path("junit.xml").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["flake"], "needs a scenario or, after --, a command"),
        (["flake", "cache_hit", "--", "true"], "takes a scenario or, after --, a command; not both"),
        (["flake", "--arm", "x", "--", "true"], "--arm is for a scenario"),
        (["flake", "--claim", "rate", "--", "true"], "--claim must be such as 'rate<1%'"),
        (["flake", "--confidence", "95", "--", "true"], "--confidence must be"),
        (["flake", "--timeout", "0", "--", "true"], "--timeout must be above 0"),
        (["flake", "--revert", "1", "--", "true"], "no toggle reverts 1"),
        (["flake", "cache_hit", "--arm", "recompote"], "did you mean 'recompute'?"),
        (["flake", "--", "./nothing"], "there is no command ./nothing"),
        (["flake", "--json-file", "no/folder", "--", "true"], "no folder no"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(argv: list[str], words: str, refused: Callable[..., str]) -> None:
    assert words in refused(*argv)


@pytest.mark.parametrize("claim", [[], ["--claim", "rate<20%"]])
def test_nothing_is_claimed_of_a_fix_of_which_nothing_shows_that_it_was_reverted(
    claim: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = document(capsys, "--revert", "27338", *claim, script="exit 0")
    assert (code, found["reason"], found["holds"], found["unproven"]) == (125, "unproven", None, ["27338"])
    assert found["next"].startswith("specdebug flake SCENARIO --revert 27338")
    code, out, _ = flake(capsys, "--revert", "27338", *claim, script="exit 0")
    assert code == 125
    assert out.startswith("unproven: nothing shows that a reverted line of 27338 ran; 0 of ")
    assert flake(capsys, *claim, script="exit 0")[0] == 0


def test_a_command_is_given_several_fixes_only_if_it_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = flake(capsys, "--no-proof", "--revert", "27338,27360", script="exit 1")
    assert code == 2
    assert "takes one number, as SGLang has it; say --takes set" in err
    several = ("--no-proof", "--takes", "set", "--revert")
    assert flake(capsys, *several, "27338,27360", "--max-trials", "2", script="exit 1")[0] == 1
    assert flake(capsys, *several, "26329,28254", script="exit 1")[0] == 2


@pytest.mark.parametrize(("fix", "code"), [("27360", 125), ("25015", 1)])
def test_a_scenario_that_runs_no_reverted_line_proves_nothing(fix: str, code: int, told: Callable[..., Any]) -> None:
    mini = str(Path(__file__).with_name("mini.yaml"))
    found = told("flake", mini, "--arm", "fixed", "--revert", fix, "--claim", "rate<50%", code=code)
    assert found["unproven"] == (["27360"] if code == 125 else [])


def test_a_claim_that_held_is_not_shown_again_once_what_it_ran_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("engine.py").write_text("works = True\n")
    subprocess.run(["git", "init", "-q"], check=True)
    script, claim = "grep -q True *.py", ("--claim", "rate<20%")
    assert flake(capsys, *claim, script=script)[1].startswith("`rate<20%` holds")
    Path("engine.py").write_text("works = False\n")
    code, out, err = flake(capsys, *claim, script=script)
    assert code == 1
    assert out.startswith("`rate<20%` is refuted")
    (line,) = (line for line in err.splitlines() if "another search" in line)
    assert line.startswith(f"working tree {Path.cwd()} changed: this is another search, from nothing; --resume-anyway")
    code, out, err = flake(capsys, *claim, "--resume-anyway", script=script)
    assert (code, out.partition(" holds")[0]) == (0, "`rate<20%`")
    assert "going on with 14 trials of before a change, as --resume-anyway says" in err
    assert flake(capsys, *claim, "--resume-anyway", "--fresh", script=script)[0] == 2


def test_a_claim_does_not_hold_on_once_an_engine_that_the_job_imports_has_changed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    engine = tmp_path / "elsewhere" / "toyspec"
    engine.mkdir(parents=True)
    (engine / "__init__.py").write_text("works = True\n")
    job = f"import sys; sys.path.insert(0, {str(engine.parent)!r}); import toyspec; sys.exit(not toyspec.works)"
    (tmp_path / "job.py").write_text(job)
    script, claim = f"cd / && {sys.executable} {tmp_path}/job.py", ("--claim", "rate<20%")
    assert flake(capsys, *claim, script=script)[0] == 0
    assert "every trial was in it already" in flake(capsys, *claim, script=script)[1]
    (engine / "__init__.py").write_text("works = False\n")
    code, _, err = flake(capsys, *claim, script=script)
    assert code == 1
    assert f"code in {engine} changed: this is another search" in err

"""The steps of an installation: each once, in order, from where it was cut short."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specdebug.installs.recipe import Recipe
from specdebug.installs.release import Release
from specdebug.installs.steps import InstallError, adopt, install, look_into, run_logged
from specdebug.installs.store import Installed, installed

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
RECIPE = Recipe("sglang", "0.5.13", "cpu", (OWN,), ("torch==2", "a==1", "sglang==0.5.13"), ("torch==2",))


class Steps:
    """Remembers what was begun and what was skipped."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.skipped_: list[str] = []

    def begin(self, what: str) -> None:
        self.begun.append(what)

    def done(self, seconds: float) -> None:
        assert seconds >= 0

    def skipped(self, what: str) -> None:
        self.skipped_.append(what)


class Runner:
    """Runs nothing; makes the interpreter that ``venv`` would, and fails at the step whose words hold ``fails``."""

    def __init__(self, fails: str = "") -> None:
        self.commands: list[list[str]] = []
        self.fails = fails

    def __call__(self, words: Sequence[str], log: Path) -> int:
        self.commands.append(list(words))
        if "venv" in words:
            python = Path(words[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.write_text("")
        if self.fails and any(self.fails in word for word in words):
            log.write_text("one\nERROR: no matching distribution\n")
            return 1
        return 0


def test_the_steps_in_their_order(tmp_path: Path) -> None:
    run, steps = Runner(), Steps()
    there = install(RECIPE, tmp_path, steps, run)
    assert [words[1:4] for words in run.commands] == [["-I", "-m", each] for each in ("venv", "pip", "pip")]
    assert run.commands[1][-1] == "torch==2"
    assert "--no-deps" not in run.commands[1]
    assert run.commands[2][-3:] == ["--no-deps", "a==1", "sglang==0.5.13"]
    assert there.complete
    assert steps.begun[0].startswith(f"an environment of Python {OWN}")
    assert steps.begun[1:] == ["torch==2", "2 packages"]


def test_it_goes_on_where_it_was_cut_short(tmp_path: Path) -> None:
    with pytest.raises(
        InstallError,
        match=r"pip ended with exit status 1 \(.*install\.log ends with: ERROR: no matching.* goes on from here",
    ):
        install(RECIPE, tmp_path, Steps(), Runner("a==1"))
    assert not installed(tmp_path)[0].complete
    run, steps = Runner(), Steps()
    assert install(RECIPE, tmp_path, steps, run).complete
    assert len(run.commands) == 1
    assert len(steps.skipped_) == 2
    assert install(RECIPE, tmp_path, Steps(), Runner("pip")).complete  # nothing is left to do


def test_another_recipe_begins_anew(tmp_path: Path) -> None:
    install(RECIPE, tmp_path, Steps(), Runner())
    changed = Recipe("sglang", "0.5.13", "cpu", (OWN,), ("torch==2", "sglang==0.5.13"))
    run = Runner()
    install(changed, tmp_path, Steps(), run)
    assert len(run.commands) == 2


def test_an_environment_that_was_deleted_is_told(tmp_path: Path) -> None:
    with pytest.raises(InstallError):
        install(RECIPE, tmp_path, Steps(), Runner("torch"))
    Path(installed(tmp_path)[0].python).unlink()
    with pytest.raises(InstallError, match=r"is gone; remove .* and install again"):
        install(RECIPE, tmp_path, Steps(), Runner())


def test_a_command_that_cannot_be_run_and_one_that_fails(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="cannot run /nowhere/python: No such file"):
        run_logged(["/nowhere/python"], tmp_path / "log")
    assert run_logged([sys.executable, "-c", "print('said'); raise SystemExit(3)"], tmp_path / "log") == 3
    assert (tmp_path / "log").read_text() == "said\n"


def test_a_user_s_own_environment_is_taken_in_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specdebug.installs.steps.look_into", lambda python, engine: {"version": "0.5.13", "torch": "2"}
    )
    there = adopt(Release("sglang"), "cpu", Path("/mine/bin/python"), tmp_path)
    assert (there.version, there.python, there.ours, there.complete) == ("0.5.13", "/mine/bin/python", False, True)
    with pytest.raises(InstallError, match=r"has sglang 0\.5\.13, not 0\.5\.14"):
        adopt(Release("sglang", "0.5.14"), "cpu", Path("/mine/bin/python"), tmp_path)
    with pytest.raises(InstallError, match="is your own environment; forget it first"):
        install(RECIPE, tmp_path, Steps(), Runner())


def test_one_of_ours_is_not_taken_for_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Installed(tmp_path / "sglang-0.5.13-cpu", "sglang", "0.5.13", "cpu", "/p", True).write()
    monkeypatch.setattr("specdebug.installs.steps.look_into", lambda python, engine: {"version": "0.5.13"})
    with pytest.raises(InstallError, match="is an environment of ours; remove it first"):
        adopt(Release("sglang"), "cpu", Path("/mine/bin/python"), tmp_path)


def test_what_is_no_environment_for_it(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="does not run: No such file or directory; name a Python interpreter"):
        look_into(tmp_path / "python", "sglang")
    with pytest.raises(InstallError, match="is no Python that can be used"):
        look_into(Path("/bin/true"), "sglang")
    with pytest.raises(InstallError, match="has no vllm installed"):
        adopt(Release("vllm"), "cpu", Path(sys.executable), tmp_path)

"""The steps of an installation: each once, in order, from where it was cut short; a command ends with us."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specdebug.targets.installs import steps as running
from specdebug.targets.installs.release import Recipe, Release
from specdebug.targets.installs.steps import StepEnded, adopt, ask, install, look_into, run_logged
from specdebug.targets.installs.store import Installed, StoreError, find_installed, held, look
from specdebug.workers.system import is_gone


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-c", code, *arguments]


def test_a_log_that_cannot_be_written_costs_no_word(tmp_path: Path) -> None:
    ended = run_logged(python("print('x' * 90_000); print('last')"), tmp_path / "none" / "log")
    assert ended.tail.endswith("xxx\nlast\n")
    assert len(ended.tail) <= running._TAIL_BYTES


def test_a_command_that_cannot_be_run_and_one_that_does_not_end(tmp_path: Path) -> None:
    for run in (lambda words: run_logged(words, tmp_path / "log"), lambda words: ask(words, 60.0)):
        with pytest.raises(StoreError, match="/nowhere/python does not run: No such file"):
            run(["/nowhere/python"])
    with pytest.raises(StoreError, match="did not answer within 0 s"):
        ask(python("import time; time.sleep(600)"), 0.0)


SLEEPS = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"


def test_a_signal_ends_the_command_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"

    def check() -> None:
        if log.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(running.interrupts, "check", check)
    with pytest.raises(KeyboardInterrupt):
        run_logged(python(SLEEPS), log)
    assert is_gone(int(log.read_text()))


KILLED = f"""
import os, signal, sys
from pathlib import Path
from specdebug.targets.installs import steps as running
from specdebug.targets.installs.store import StoreError, held
log = Path(sys.argv[1]) / "log"
running.interrupts.check = lambda: log.exists() and os.kill(os.getpid(), signal.SIGKILL)
with held(Path(sys.argv[1])):
    running.run_logged([sys.executable, "-I", "-c", {SLEEPS!r}], log)
"""


def test_a_command_of_a_killed_process_is_gone_before_the_next_installs(tmp_path: Path) -> None:
    assert subprocess.run(python(KILLED, str(tmp_path)), check=False).returncode == -9
    with held(tmp_path):
        assert is_gone(int((tmp_path / "log").read_text()))


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

    def __init__(self, fails: str = "", says: str = "ERROR: no matching distribution") -> None:
        self.commands: list[list[str]] = []
        self.fails, self.says = fails, says

    def __call__(self, words: Sequence[str], log: Path) -> StepEnded:
        self.commands.append(list(words))
        if "venv" in words:
            python = Path(words[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.write_text("")
        if self.fails and any(self.fails in word for word in words):
            return StepEnded(1, f"one\n{self.says}\n")
        if "--report" in words:
            named = [word.split("==") for word in words if "==" in word]
            taken = [
                {
                    "metadata": {"name": name, "version": version},
                    "download_info": {"url": "u", "archive_info": {"hashes": {"sha256": f"{name}-of-{version}"}}},
                }
                for name, version in named
            ]
            Path(words[words.index("--report") + 1]).write_text(json.dumps({"version": "1", "install": taken}))
            for name, version in named:
                metadata = site_of(log.parent) / f"{name}-{version}.dist-info"
                metadata.mkdir(parents=True, exist_ok=True)
                (metadata / "INSTALLER").write_text("pip")
        return StepEnded(0)


def site_of(folder: Path) -> Path:
    return folder / "venv" / "lib" / "python3" / "site-packages"


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
    assert there.packages == {
        name: {"version": version, "sha256": f"{name}-of-{version}"}
        for name, version in (("torch", "2"), ("a", "1"), ("sglang", "0.5.13"))
    }


def test_it_goes_on_where_it_was_cut_short(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError,
        match=r"pip ended with exit status 1 \(ERROR: no matching distribution\); .*install\.log; .* goes on from here",
    ):
        install(RECIPE, tmp_path, Steps(), Runner("a==1"))
    assert not look(tmp_path)[0][0].complete
    run, steps = Runner(), Steps()
    assert install(RECIPE, tmp_path, steps, run).complete
    assert len(run.commands) == 1
    assert len(steps.skipped_) == 2
    assert install(RECIPE, tmp_path, Steps(), Runner("pip")).complete  # nothing is left to do
    changed = Recipe("sglang", "0.5.13", "cpu", (OWN,), ("torch==2", "sglang==0.5.13"))
    install(changed, tmp_path, Steps(), run)  # which begins anew
    assert len(run.commands) == 1 + 2


@pytest.mark.parametrize("lost", ["venv", "python", "package"])
@pytest.mark.parametrize("fails", ["a==1", ""])
def test_what_was_removed_is_made_again(lost: str, fails: str, tmp_path: Path) -> None:
    if fails:
        with pytest.raises(StoreError):
            install(RECIPE, tmp_path, Steps(), Runner(fails))
    else:
        install(RECIPE, tmp_path, Steps(), Runner())
    (there,) = look(tmp_path)[0]
    if lost == "venv":
        shutil.rmtree(there.venv)
    elif lost == "python":
        Path(there.python).unlink()
    else:
        shutil.rmtree(site_of(there.folder) / "torch-2.dist-info")
    (now,) = look(tmp_path)[0]
    assert "gone" in now.gone
    if not fails:
        with pytest.raises(StoreError, match=r"gone.*; make it again with: specdebug engines install sglang==0\.5\.13"):
            find_installed(tmp_path, Release("sglang"))
    run = Runner()
    again = install(RECIPE, tmp_path, Steps(), run)
    assert (len(run.commands), again.gone, again.complete) == (3, "", True)


@pytest.mark.parametrize("report", ["nonsense", "[]", '{"install": [{"metadata": {"name": "a"}}]}', '{"install": 3}'])
def test_a_report_that_pip_never_wrote_is_named(report: str, tmp_path: Path) -> None:
    def run(words: Sequence[str], log: Path) -> StepEnded:
        if "--report" in words:
            Path(words[words.index("--report") + 1]).write_text(report)
        return StepEnded(0)

    with pytest.raises(StoreError, match=r"pip-report\.json"):
        install(RECIPE, tmp_path, Steps(), run)


def test_a_package_that_was_cut_short_is_installed_again(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        install(RECIPE, tmp_path, Steps(), Runner("a==1"))
    half = site_of(tmp_path / "sglang-0.5.13-cpu") / "a-1.dist-info"
    half.mkdir()
    (half / "METADATA").write_text("Name: a")
    seen = list[bool]()

    def run(words: Sequence[str], log: Path) -> StepEnded:
        seen.append(half.exists())
        return StepEnded(0)

    install(RECIPE, tmp_path, Steps(), run)
    assert seen == [False]


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("a==1", "OSError: [Errno 28] No space left on device: '/tmp/x'"),
        ("a==1", "OSError: [Errno 12] Cannot allocate memory"),
        ("venv", "Error: ensurepip returned non-zero exit status 1."),  # which hides that the disk is full
    ],
)
def test_a_machine_that_fails_is_told_as_that(
    fails: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fails == "venv":
        monkeypatch.setattr("specdebug.targets.installs.steps._ROOM_BYTES", float("inf"))
    with pytest.raises(StoreError, match=r"machine: there is no .*goes on from here") as caught:
        install(RECIPE, tmp_path, Steps(), Runner(fails, said))
    assert caught.value.exit_code == 125


def test_a_user_s_own_environment_is_taken_in_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdebug.targets.installs.steps.look_into", lambda python, engine: {"version": "0.5.13"})
    mine = Path("/mine/bin/python")
    there = adopt(Release("sglang"), "cpu", mine, tmp_path)
    assert (there.version, there.python, there.ours, there.complete) == ("0.5.13", str(mine), False, True)
    with pytest.raises(StoreError, match=r"has sglang 0\.5\.13, not 0\.5\.14"):
        adopt(Release("sglang", "0.5.14"), "cpu", mine, tmp_path)
    with pytest.raises(StoreError, match="is your own environment; forget it first"):
        install(RECIPE, tmp_path, Steps(), Runner())
    Installed(tmp_path / "own" / "sglang-0.5.13-cpu", "sglang", "0.5.13", "cpu", "/p", True).write()
    with pytest.raises(StoreError, match="is an environment of ours; remove it first"):
        adopt(Release("sglang"), "cpu", mine, tmp_path / "own")


def test_what_is_no_environment_for_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not run: No such file or directory"):
        look_into(tmp_path / "python", "sglang")
    with pytest.raises(StoreError, match="is no Python that can be used"):
        look_into(Path("/bin/true"), "sglang")
    with pytest.raises(StoreError, match="has no vllm installed"):
        adopt(Release("vllm"), "cpu", Path(sys.executable), tmp_path)

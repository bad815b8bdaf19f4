"""Whatever signal ends a command, however often it comes, what is known by then is printed and written.

Workers are stand-ins, so that signals come at points that are known: see ``signalled.py``.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.bundle.bundles import make_bundle

ROOT = Path(__file__).resolve().parents[2]
MINI = str(ROOT / "tests/cli/mini.yaml")
CRASH = str(ROOT / "tests/logs/quoted/own-topk_kv_indices.txt")
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
FAST = {("flake", "SIGINT"), ("", "SIGHUP")}
"""Every case is a process or two; these stand for the others when there is little time."""


@dataclass(frozen=True)
class Case:
    """A command, how many of its workers end well before the signals come, and what must be told all the same."""

    argv: tuple[str, ...]
    done: int
    told: str
    files: dict[str, str] = field(default_factory=dict)


CASES = {
    "replay": Case(
        ("replay", MINI, "-j", "1", "--json", "--junit", "j.xml", "--html", "h.html"),
        1,
        '"interrupted before it was done"',
        {"j.xml": 'classname="specdebug.mini" name="fixed"', "h.html": "fixed"},
    ),
    "replay of a bundle": Case(("replay", "b.specdebug"), 0, "interrupted; recorded is pass"),
    "compare": Case(("compare", MINI, "-j", "1", "--junit", "j.xml"), 1, "fixed", {"j.xml": 'name="fixed"'}),
    "bundle": Case(("bundle", MINI, "-o", "new.specdebug"), 0, "interrupted before it was done"),
    "diverge": Case(("diverge", MINI, "--arm", "fixed", "--arm", "positions", "-j", "1"), 1, "interrupted"),
    "toggles verify": Case(("toggles", "verify", "25015", "27338", "-j", "1"), 2, "25015"),
    "triage --run": Case(("triage", CRASH, "--run", "-j", "1"), 0, "to run next:"),
    "faults verify": Case(
        ("faults", "verify", "--class", "nan_logits", "--seeds", "3", "-j", "1", "--html", "h.html"),
        3,
        "stopped after 3 of 30 runs",  # on each of five workers, with and without the fault
        {"h.html": "27 runs not made"},
    ),
    "bisect": Case(("bisect", MINI, "-j", "1", "--json"), 2, '"trials": 2'),
    "flake": Case(("flake", MINI, "-j", "1", "--junit", "j.xml"), 2, "0 of 2 failed", {"j.xml": "0 of 2 failed"}),
    "minimise": Case(("minimise", MINI, "-j", "1", "-o", "small.yaml"), 2, "interrupted after 2 trials"),
}


def interrupted(case: Case, name: str, folder: Path, terminal: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command, which gets the signal when ``case.done`` of its workers have ended. ``terminal``: where it
    prints, instead of to us."""
    if "b.specdebug" in case.argv:
        make_bundle(folder / "b.specdebug")
    (folder / "workers").mkdir()
    argv = [sys.executable, "-m", "tests.cli.signalled", name, str(case.done), str(folder / "workers"), "--"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("SGLANG_DEBUG_REVERT_PR", None)
    return subprocess.run(
        [*argv, *case.argv],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE if terminal is None else terminal,
        stderr=subprocess.PIPE if terminal is None else terminal,
        text=True,
        timeout=120,
        check=False,
    )


def cases(*commands: str) -> list[object]:
    """Every command with every signal."""
    return [
        pytest.param(command, name, marks=() if (command, name) in FAST else pytest.mark.slow)
        for command in commands
        for name in SIGNALS
    ]


@pytest.mark.parametrize(("command", "name"), cases(*CASES))
def test_three_signals_lose_nothing(command: str, name: str, tmp_path: Path) -> None:
    case = CASES[command]
    ended = interrupted(case, name, tmp_path)
    assert ended.returncode == 128 + getattr(signal, name), ended.stderr
    assert case.told in " ".join(ended.stdout.split()), ended.stdout
    assert "Traceback" not in ended.stderr
    for file, content in case.files.items():
        assert content in (tmp_path / file).read_text()
    assert not (tmp_path / "new.specdebug").exists()
    workers = [worker.name for worker in (tmp_path / "workers").iterdir()]
    assert len(workers) == case.done + 1
    assert not [worker for worker in workers if os.path.exists(f"/proc/{worker}")]


def test_arms_that_were_interrupted_or_never_begun_are_said_to_be_so(tmp_path: Path) -> None:
    ended = interrupted(CASES["replay"], "SIGTERM", tmp_path)
    document = json.loads(ended.stdout)
    assert ended.returncode == 143
    assert (document["interrupted"], document["exit_code"]) == (True, 143)
    assert [(arm["arm"], arm["verdict"], arm["reasons"]) for arm in document["arms"]] == [
        ("fixed", "pass", []),
        ("plain", "unknown", ["interrupted before it was done"]),
        ("positions", "unknown", ["interrupted before it began"]),
        ("unreached", "unknown", ["interrupted before it began"]),
    ]


def test_what_is_known_is_written_when_the_terminal_is_gone(tmp_path: Path) -> None:
    ours, its = os.openpty()
    os.close(ours)
    ended = interrupted(CASES["replay"], "SIGHUP", tmp_path, its)
    os.close(its)
    assert ended.returncode == 129
    for file, content in CASES["replay"].files.items():
        assert content in (tmp_path / file).read_text()


def ends_while_importing(module: str, argv: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGV``, which gets a SIGINT when it imports ``module``."""
    (folder / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    return subprocess.run(
        [sys.executable, *argv], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("module", ["typer", pytest.param("specdebug.cli.replay", marks=pytest.mark.slow)])
def test_a_ctrl_c_while_the_command_line_is_imported_is_no_traceback(module: str, tmp_path: Path) -> None:
    ended = ends_while_importing(module, ["-m", "specdebug", "--version"], tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
    script = "import sys; from specdebug.__main__ import main; sys.exit(main())"  # as an installed command does
    ended = ends_while_importing(module, ["-c", script, "--version"], tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_a_ctrl_c_before_anything_runs_is_no_traceback(tmp_path: Path) -> None:
    ended = ends_while_importing("specdebug.scenario.library", ["-m", "specdebug", "scenarios", "list"], tmp_path)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert "Traceback" not in ended.stderr

"""What a contributor runs: the Makefile's list of targets, CI's script, and the hooks before a commit."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from tools import portable

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@needs_make
def test_help_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    words = ["make", "--no-print-directory", "help"]
    told = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60).stdout
    listed = re.findall(r"^  make (\S+)  +\S", told, re.MULTILINE)
    assert listed == phony[1].split()
    assert "test-all" in listed


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run_ci(tmp_path: Path, failing: str) -> subprocess.CompletedProcess[str]:
    """Run CI's script with a make that prints many lines and fails at one target."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    executable(
        binaries / "make",
        "#!/bin/sh\n"
        'for n in 1 2 3 4 5 6 7 8 9; do echo "$* line $n"; done\n'
        f'if [ "$1" = {failing} ]; then echo "1 failed, 8 passed"; exit 2; fi\n'
        'echo "9 passed"\n',
    )
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [ROOT / ".ci" / "run"], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )


def ci_targets() -> list[str]:
    return re.findall(r"^step \S+ make (\S+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


@needs_bash
@pytest.mark.parametrize("failing", ci_targets())
def test_ci_fails_when_one_step_does_and_runs_the_others(tmp_path: Path, failing: str) -> None:
    ended = run_ci(tmp_path, failing)
    assert ended.returncode == 1
    summary = ended.stdout.partition("== what CI ran\n")[2]
    assert re.findall(r"^-- \S+: exit status (\d+), \d+ s$", summary, re.MULTILINE) == [
        "2" if target == failing else "0" for target in ci_targets()
    ]
    assert "1 failed, 8 passed\n" in summary
    assert re.search(r"^failed: \S+$", summary, re.MULTILINE)


def test_the_hooks_run_what_make_lint_runs() -> None:
    """And from the project's own environment, so that no network is needed and versions are the pinned ones."""
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    lint = [line.strip().removeprefix("$(BIN)/").removesuffix(" .") for line in recipe[1].splitlines()]
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert all(hook["language"] == "system" for hook in repository["hooks"])
    hooks = [hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]]
    # a hook may write the files that it looks at, CI may not
    assert hooks == [command.removesuffix(" --check") for command in lint]


def test_every_test_that_is_played_as_another_processor_is_there() -> None:
    paths = (*portable.SHORT, *portable.NUMERICAL, portable.PATH_OF_SEARCH)
    assert [path for path in paths if not (ROOT / path).exists()] == []

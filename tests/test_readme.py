"""Every command of README.md, as it stands there: run, or named here with the reason why not."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINE = re.compile(r"^    ((?:[A-Z_]+=\S+ )*(?:specdebug|make|pip) .*?)(?:\s{2,}# .*)?$", re.MULTILINE)
ELSEWHERE = {
    r"make |pip ": "sets up an environment; .ci/run does",
    r"127\.0\.0\.1": "wants a server",
    r"specdebug serve ": "serves until a signal comes; tests of serve do",
    r"engines install|--target sglang|--against sglang": "wants a release, which `make test-engines` installs",
}
"""Commands that are not run here, and why."""
SLOW = r"toggles verify$|specdebug solve|scenarios --save|bisect|flake |minimise|scenarios/server|-k "
CODES = {
    r"^SGLANG_DEBUG_REVERT_PR=\d+ specdebug replay|--fault|specdebug diverge|specdebug flake": 1,
    r"specdebug solve|specdebug run --revert 27338|over (toggles|commits .*) -- ./ci-job": 125,
}
"""Exit codes other than 0: a fix is reverted, a fault injected, the arms differ; a job that imports no engine
proves nothing; a log of SGLang's, whose engine is not there, ends with a suspect."""


def commands() -> list[object]:
    found = []
    for line in LINE.findall((ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", "")):
        if not any(re.search(pattern, line) for pattern in ELSEWHERE):
            marks = [pytest.mark.slow] if re.search(SLOW, line) else []
            found.append(pytest.param(line, marks=marks, id=line))
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what the commands name: our scenarios, a job, a log, and a repository of two commits."""
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    (tmp_path / "ci-job.sh").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "ci-job.sh").chmod(0o755)
    shutil.copy(ROOT / "tests/logs/quoted/sglang-5491.txt", tmp_path / "ci.log")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "ci-job.sh"], check=True)
    for name in ("v1", "v2"):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", name], check=True)
        subprocess.run([*git, "tag", name], check=True)
    return tmp_path


@pytest.mark.parametrize("line", commands())
def test_it_runs_as_it_stands_there(line: str, checkout: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    names = ("SGLANG_DEBUG_REVERT_PR", "SPECDEBUG_PATH")
    env = {name: value for name, value in os.environ.items() if name not in names} | {"PATH": path}
    code = next((code for pattern, code in CODES.items() if re.search(pattern, line)), 0)
    words = line.partition("; echo")[0]
    done = subprocess.run(["sh", "-c", words], cwd=checkout, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]


def test_a_reason_is_given_for_what_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(re.search(pattern, text) for pattern in (*ELSEWHERE, *CODES))

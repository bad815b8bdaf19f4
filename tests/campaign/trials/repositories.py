"""Repositories to search."""

import os
import subprocess
from pathlib import Path

import pytest

ENVIRONMENT = {
    **os.environ,
    **{f"GIT_{who}_{what}": "x@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(*words: str) -> str:
    asked = subprocess.run(["git", *words], check=True, capture_output=True, text=True, env=ENVIRONMENT)
    return asked.stdout.strip()


def commit(number: int) -> None:
    Path("value").write_text(str(number))
    git("add", "-A")
    git("commit", "-qm", f"change {number}")


def make_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one of six commits in ``repo`` and go there; ``tmp`` is the temporary folder."""
    (tmp_path / "repo").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path / "repo")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    git("init", "-q", "-b", "main")
    Path("deep").mkdir()
    script("deep/tracked.sh", "#!/bin/bash\ncat ../value\n")
    for number in range(6):
        commit(number)


def script(name: str, text: str) -> None:
    Path(name).write_text(text)
    Path(name).chmod(0o755)

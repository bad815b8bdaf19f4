"""A pipe in the place of a file is refused in one line by every reader, and nothing waits for a writer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specdebug.cli.main import run


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("b.specdebug", "replay {}"),
        ("s.yaml", "replay {}"),
        ("s.yaml", "scenarios validate {}"),
        ("log", "triage {}"),
        ("j", "bisect --journal {} -- true"),
        ("j", "flake --journal {} -- true"),
        ("s.yaml", "compare {}"),
        ("s.yaml", "diverge {}"),
        ("s.yaml", "minimise {} -o out.yaml"),
    ],
)
def test_a_command_refuses_it(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(name)
    status = run(command.format(name).split())
    said = capfd.readouterr().err
    assert status == 2, said
    assert "is not a regular file" in said or "is a pipe" in said, said
    assert "Traceback" not in said
    assert said.count("\n") == 1

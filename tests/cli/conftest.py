"""Every test of a command runs in a folder of its own, and asks for what the command says in the same ways."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line that must end in one error line and print nothing else; returns what the line says."""

    def run_it(*argv: str, code: int = 2) -> str:
        capsys.readouterr()
        assert run(argv) == code
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), err
        assert err.startswith("error: ")
        return err.removeprefix("error: ").strip()

    return run_it


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command line with ``--json``, which must end with ``code``; returns the document."""

    def run_it(*argv: str, code: int = 0) -> Any:
        capsys.readouterr()
        end = argv.index("--") if "--" in argv else len(argv)
        ended = run([*argv[:end], "--json", *argv[end:]])
        out, err = capsys.readouterr()
        assert ended == code, out + err
        return json.loads(out)

    return run_it

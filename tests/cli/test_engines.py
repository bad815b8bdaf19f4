"""``specdebug engines``: what is there, what is not, and what is removed. Installing itself is in tests/engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from specdebug.cli.main import run
from specdebug.targets.installs.store import Installed


def engines(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(["engines", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def store(tmp_path: Path) -> Path:
    checked = {"plain": "pass", "drafts": "pass", "accept_length": 2.25}
    Installed(
        tmp_path / "a", "sglang", "0.5.13", "cpu", sys.executable, False, done=("installed",), checked=checked
    ).write()
    Installed(tmp_path / "b", "sglang", "0.5.9", "cpu", sys.executable, True, done=("environment",)).write()
    return tmp_path


def test_what_is_installed_and_what_can_be(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    code, out, _ = engines(capsys, "list", "--into", str(store))
    assert code == 0
    assert "serves, accept length 2.25" in out
    assert "not complete (1 steps done)" in out
    code, out, _ = engines(capsys, "list", "--into", str(store), "--json")
    document = json.loads(out)
    assert [each["release"] for each in document["installed"]] == ["sglang==0.5.13", "sglang==0.5.9"]
    assert document["installed"][0]["own"] is True
    assert "sglang==0.5.13" in [each["release"] for each in document["recipes"]]


def test_removing(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    code, _, err = engines(capsys, "remove", "sglang", "--into", str(store))
    assert (code, "may be any of sglang==0.5.13, sglang==0.5.9; name one" in err) == (2, True)
    code, out, _ = engines(capsys, "remove", "sglang==0.5.13", "--into", str(store))
    assert (code, out) == (0, f"sglang==0.5.13 is forgotten; {sys.executable} is as it was\n")
    code, out, _ = engines(capsys, "remove", "sglang", "--into", str(store))
    assert (code, out) == (0, "sglang==0.5.9 is removed\n")
    code, _, err = engines(capsys, "remove", "sglang", "--into", str(store))
    assert code == 2
    assert "sglang is not installed in" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("install", "sglang==0.0.1"), "no recipe installs sglang==0.0.1 for cpu; there are: "),
        (("install", "sgl"), "no engine 'sgl'"),
        (("install", "sglang==0.5.13", "--cpu", "--cuda"), "--cpu or --cuda, not both"),
        (("install", "sglang==0.5.13", "--python", "/nowhere"), "/nowhere does not run: No such file or directory"),
        (("check", "vllm"), "vllm is not installed in"),
    ],
)
def test_what_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    code, out, err = engines(capsys, *words, "--into", str(tmp_path))
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1

"""specdebug toggles siblings: of a toggle, or of a fix that a checkout has."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specdebug.cli.main import run
from tests.apps.mining.checkout import BROKEN, FIXED, checkout, commit

LIKE = BROKEN.replace("def room", "def width").replace("def rows", "def widths")


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a fix of one function; another is as that was."""
    monkeypatch.setenv("SPECDEBUG_ENGINES", str(tmp_path / "engines"))
    top = checkout(tmp_path)
    (top / "pyproject.toml").write_text('[project]\nname = "toy"\nversion = "1.0"\n')
    commit(top, "latent.py", LIKE, "Latent rows")
    commit(top, "pool.py", FIXED, "Rows need room (#101)")
    return top


@pytest.mark.parametrize("name", ["101", "HEAD"])
def test_a_fix_in_git_is_looked_for_in_its_own_tree(top: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["toggles", "siblings", name, "--repo", str(top), "--against", str(top), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["function"], first["where"]) == ("toy.latent:width", "checkout/toy/latent.py:3")
    assert first["why"]["factor"] == "page and pages without topk"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["999"], "999"),
        (["999", "--repo", "."], "(#999) in its subject, nor is 999 a commit there"),
        (["27338", "--version", "2"], "--version is 2"),
    ],
)
def test_what_cannot_be_looked_for_is_told(
    top: Path, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(top)
    assert told in refused("toggles", "siblings", *words, "--against", str(top))

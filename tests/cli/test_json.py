"""``--json`` prints the document, ``--json-file`` keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdebug.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
MINI = str(ROOT / "tests" / "cli" / "mini.yaml")
RUNNERS = ("replay", "compare", "diverge", "bundle", "bisect", "flake", "minimise", "triage")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "on_stdout", "in_file"),
    [("--json", True, False), ("--json --json-file d.json", True, True), ("--json-file d.json", False, True)],
)
def test_the_document_goes_to_stdout_to_a_file_or_to_both(
    words: str, on_stdout: bool, in_file: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["flake", "--max-trials", "2", *words.split(), "--", "true"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("{") is on_stdout
    assert Path("d.json").exists() is in_file
    for text in ([out] if on_stdout else []) + ([Path("d.json").read_text()] if in_file else []):
        assert json.loads(text)["trials"] == 2


def test_validate_lists_what_is_wrong_with_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(MINI).read_text()
    (tmp_path / "bad.yaml").write_text(text.replace("model: tiny", "modle: tiny"))
    line = text.splitlines().index("  model: tiny") + 1
    assert run(["scenarios", "validate", MINI, "bad.yaml", "gone.yaml", "--json"]) == 2
    out, err = capsys.readouterr()
    good, bad, gone = json.loads(out)
    assert err == ""
    assert good == {"file": MINI, "ok": True, "arms": ["fixed", "plain", "positions", "unreached"], "problems": []}
    assert [(each["file"], each["ok"], each["arms"]) for each in (bad, gone)] == [
        ("bad.yaml", False, []),
        ("gone.yaml", False, []),
    ]
    (wrong,) = bad["problems"]
    assert set(wrong) == {"file", "line", "column", "message"}
    assert (wrong["file"], wrong["line"]) == ("bad.yaml", line)
    assert "did you mean 'model'" in wrong["message"]
    assert "no such file" in gone["problems"][0]["message"]
    assert run(["scenarios", "validate", MINI, "--json"]) == 0

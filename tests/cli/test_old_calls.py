"""``--json`` has one meaning, and what was written before goes on meaning what it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from specdebug.cli.main import app, run

ROOT = Path(__file__).resolve().parents[2]
MINI = str(ROOT / "tests" / "cli" / "mini.yaml")
RUNNERS = ("replay", "compare", "diverge", "bundle", "bisect", "flake", "minimise", "triage")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parsed(line: str) -> dict[str, Any]:
    """The parameters of a command line, without running it."""
    words = line.split()
    root: Any = typer.main.get_command(app)
    command = root.commands[words[0]]
    context = command.make_context(words[0], words[1:])
    return dict(context.params)


OLD_AND_NEW = [
    ("diverge x.yaml --json", True, None, "x.yaml"),
    ("diverge --json x.yaml", True, None, "x.yaml"),
    ("diverge x.yaml --json -", True, None, "x.yaml"),
    ("diverge --json - x.yaml", True, None, "x.yaml"),
    ("diverge x.yaml --json out", False, "out", "x.yaml"),
    ("diverge --json out x.yaml", False, "out", "x.yaml"),
    ("diverge --json=out x.yaml", False, "out", "x.yaml"),
    ("diverge --json=- x.yaml", True, None, "x.yaml"),
    ("diverge x.yaml --json --arm a", True, None, "x.yaml"),
    ("diverge x.yaml --json --json-file out", True, "out", "x.yaml"),
    ("diverge --json --arm a x.yaml", True, None, "x.yaml"),
    ("diverge --arm a --json x.yaml", True, None, "x.yaml"),
    ("diverge --arm a --json x.yaml y.yaml", False, "x.yaml", "y.yaml"),
    ("minimise -o s.yaml --json x.yaml", True, None, "x.yaml"),
    ("minimise --json d.json -o s.yaml x.yaml", False, "d.json", "x.yaml"),
    ("minimize x.yaml -o s.yaml --json d.json", False, "d.json", "x.yaml"),
    ("flake --json x.yaml", True, None, "x.yaml"),
    ("flake --json out x.yaml", False, "out", "x.yaml"),
    ("flake --json out -- false", False, "out", None),
    ("flake --json -- false", True, None, None),
    ("flake --json - -- cmd --json -", True, None, None),
    ("bisect --json d.json --over commits --good v1 -- ./test", False, "d.json", None),
    ("bisect x.yaml --json", True, None, "x.yaml"),
]


@pytest.mark.parametrize(("line", "flag", "file", "subject"), OLD_AND_NEW, ids=lambda value: str(value))
def test_the_word_after_json(line: str, flag: bool, file: str | None, subject: str | None) -> None:
    found = parsed(line)
    its_file = found["json_file"]
    assert found["as_json"] is flag
    assert (None if its_file is None else str(its_file)) == file
    assert found.get("scenario", found.get("file")) == subject


@pytest.mark.parametrize("name", ["replay", "compare", "bundle", "triage"])
def test_where_it_was_always_a_flag_the_word_after_it_is_the_subject(name: str) -> None:
    more = " -o b.specdebug" if name == "bundle" else ""
    for line in (f"{name} --json x.yaml{more}", f"{name} x.yaml --json{more}"):
        found = parsed(line)
        assert found["as_json"] is True
        assert "x.yaml" in (*(found.get("files") or ()), found.get("file"), found.get("log"))


def test_every_command_that_runs_something_has_both(tmp_path: Path) -> None:
    root: Any = typer.main.get_command(app)
    commands = {name: root.commands[name] for name in RUNNERS}
    commands |= {f"{name} verify": root.commands[name].commands["verify"] for name in ("toggles", "faults")}
    for name, command in commands.items():
        options = {option: param for param in command.params for option in param.opts}
        assert options["--json"].is_flag, name
        assert not options["--json-file"].is_flag, name


@pytest.mark.parametrize(
    ("words", "on_stdout", "in_file"),
    [("--json", True, False), ("--json --json-file d.json", True, True), ("--json d.json", False, True)],
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

"""A configuration file and the command line: which of them counts, and what ``specdebug config`` says."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdebug.cli.main import run
from specdebug.cli.options import DeviceOptions

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "tests" / "cli" / "mini.yaml"


@pytest.fixture(autouse=True)
def _configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEBUG_CONFIG", raising=False)


def own_content(folder: Path) -> Path:
    (folder / "scenarios").mkdir(parents=True)
    text = MINI.read_text().replace("name: mini", "name: mine")
    (folder / "scenarios" / "mine.yaml").write_text(text)
    return folder


def test_the_file_s_values_reach_every_command_that_has_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def engine(self: DeviceOptions) -> Any:
        seen["values"] = [getattr(self, name, None) for name in ("device", "dtype", "backend", "page_size")]
        raise KeyboardInterrupt

    (tmp_path / ".specdebug.toml").write_text('device = "cuda:3"\nbackend = "fa3"\npage-size = 16\n')
    monkeypatch.setattr(DeviceOptions, "engine", engine)
    over = ["cuda:3", None, "fa3", 16]
    for argv, values in [
        (["replay", str(MINI)], over),
        (["compare", str(MINI)], over),
        (["diverge", str(MINI)], over),
        (["bundle", str(MINI), "-o", "b.specdebug"], over),
        (["minimise", str(MINI), "-o", "s.yaml"], over),
        (["minimize", str(MINI), "-o", "s.yaml"], over),
        (["toggles", "verify"], [*over[:3], None]),
        (["faults", "verify"], ["cuda:3", None, None, None]),
        (["replay", str(MINI), "--device", "cpu", "--page-size", "1"], ["cpu", None, "fa3", 1]),
        (["replay", str(MINI), "--attention-backend", "triton"], ["cuda:3", None, "triton", 16]),
    ]:
        assert run(argv) == 130
        assert seen.pop("values") == values


def test_content_of_the_file_is_found_and_the_command_line_s_goes_over_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_content(tmp_path / "mine")
    (tmp_path / "other" / "toggles").mkdir(parents=True)
    (tmp_path / "below").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.specdebug]\ncontent = ["mine"]\n')
    assert run(["scenarios", "validate", "mine"]) == 0
    assert run(["scenarios", "validate", "mine", "--content", "other"]) == 2
    assert "no scenario of this name" in capsys.readouterr().err


def test_a_command_of_its_own_has_no_engine_whatever_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".specdebug.toml").write_text('device = "cuda"\nmax-trials = 2\n')
    assert run(["flake", "--json", "--", "true"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 2
    assert run(["flake", "--device", "cuda", "--", "true"]) == 2
    assert capsys.readouterr().err == "error: --device is for a scenario; a command has none\n"


def test_a_file_that_is_wrong_ends_every_command_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / ".specdebug.toml"
    file.write_text("jobs = 2\njbos = 3\n")
    for argv in (["toggles", "list"], ["config"], ["replay", str(MINI)]):
        assert run(argv) == 2
        assert capsys.readouterr().err == f"error: {file}:2: unknown key 'jbos'; did you mean 'jobs'?\n"


def test_config_says_what_is_in_force_and_from_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config"]) == 0
    assert capsys.readouterr().out == "no configuration file: every option has its default\n"
    file = tmp_path / ".specdebug.toml"
    own_content(tmp_path / "mine")
    file.write_text('content = ["mine"]\n\npage-size = 16\n')
    monkeypatch.setenv("SPECDEBUG_PATH", "elsewhere")
    assert run(["config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(file),
        "settings": {
            "content": {"value": [str(tmp_path / "mine")], "line": 1},
            "page-size": {"value": 16, "line": 3},
        },
        "SPECDEBUG_PATH": "elsewhere",
    }
    assert run(["config"]) == 0
    out = capsys.readouterr().out
    assert f"{file}:3" in out
    assert "SPECDEBUG_PATH=elsewhere" in out

"""tools/set_up.py: which commands it runs for what, what it says, and how its failures end."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "set_up.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """The script as a module; tools/ is no package."""
    spec = importlib.util.spec_from_file_location("set_up", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Commands:
    """Stands in for running commands: keeps them, makes what `venv` would make, and fails where it is told to."""

    def __init__(self, fails: str = "nothing") -> None:
        self.fails = fails
        self.run: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> int:
        self.run.append(list(command))
        if command[1:3] == ["-m", "venv"]:
            binaries = Path(command[3]) / "bin"
            binaries.mkdir(parents=True, exist_ok=True)
            (binaries / "python").touch()
            if self.fails != "venv":
                (binaries / "pip").touch()
        return 7 if self.fails in command else 0


def torch_wanted() -> str:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    return next(line.strip(' ",') for line in lines if line.startswith('    "torch>='))


def test_an_environment_is_made_and_torch_comes_first(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands, folder = Commands(), tmp_path / "env"
    assert tool.main([str(folder)], commands) == 0
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    assert commands.run == [
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, torch_wanted()],
        [*pip, "-e", str(ROOT)],
    ]
    said = capsys.readouterr().out.splitlines()
    assert [line.startswith("== ") for line in said] == [True, False] * 3
    assert ("TORCH_INDEX=" in said[2]) == (sys.platform == "linux")


def test_torch_comes_from_its_own_index_and_nothing_else_does(tool: ModuleType, tmp_path: Path) -> None:
    commands = Commands()
    assert tool.main([str(tmp_path / "env"), "--torch-index", "https://example.org/cpu"], commands) == 0
    _, torch, rest = commands.run
    assert torch[-3:] == ["--index-url", "https://example.org/cpu", torch_wanted()]
    assert "--index-url" not in rest


def test_extras_go_into_the_environment_that_is_there(tool: ModuleType, tmp_path: Path) -> None:
    commands = Commands()
    assert tool.main([str(tmp_path / "env")], commands) == 0
    commands.run.clear()
    assert tool.main([str(tmp_path / "env"), "test", "lint"], commands) == 0
    assert [command[-2:] for command in commands.run] == [["-e", f"{ROOT}[test,lint]"]]


def test_on_a_terminal_pip_shows_its_progress(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert tool.main([str(tmp_path / "env")], commands) == 0
    assert not any("--quiet" in command for command in commands.run)


@pytest.mark.parametrize(("fails", "after"), [("venv", 1), ("-e", 3)])
def test_the_first_command_that_fails_is_the_last(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], fails: str, after: int
) -> None:
    commands = Commands(fails)
    assert tool.main([str(tmp_path / "env")], commands) == 1
    assert len(commands.run) == after
    said = capsys.readouterr().err
    assert said.startswith("error: `")
    assert "` ended with exit status 7" in said
    assert ("python3-venv" in said) == (fails == "venv")


def test_an_interrupt_ends_it_in_one_line(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(command: Sequence[str]) -> int:
        raise KeyboardInterrupt

    assert tool.main([str(tmp_path / "env")], interrupted) == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on from here\n"


def test_an_environment_that_was_cut_short_is_made_again(tool: ModuleType, tmp_path: Path) -> None:
    assert tool.main([str(tmp_path / "env")], Commands("venv")) == 1
    commands = Commands()
    assert tool.main([str(tmp_path / "env")], commands) == 0
    assert commands.run[0] == [sys.executable, "-m", "venv", str(tmp_path / "env")]


def test_a_python_that_is_too_old_is_named(tool: ModuleType) -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 8))  # raises where an old Python could not even read it
    with pytest.raises(tool.SetUpError, match=rf"needs Python 3\.11 or newer, and {sys.executable} is 3\.9; name"):
        tool.check_python((3, 9))
    tool.check_python((3, 11))
    tool.check_python((3, 13))


def test_the_oldest_python_is_the_one_that_pyproject_asks_for(tool: ModuleType) -> None:
    oldest = ".".join(map(str, tool.OLDEST))
    assert f'requires-python = ">={oldest}"' in (ROOT / "pyproject.toml").read_text()


def test_a_requirement_is_found_by_its_whole_name(tool: ModuleType) -> None:
    text = '[project]\ndependencies = ["torchvision>=1", "torch>=2,<3", "numpy"]\n'
    assert tool.requirement("torch", text) == "torch>=2,<3"
    assert tool.requirement("numpy", text) == "numpy"
    with pytest.raises(tool.SetUpError, match=r"pyproject\.toml has no dependency on jax"):
        tool.requirement("jax", text)


def test_a_folder_is_asked_for() -> None:
    ended = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "folder" in ended.stderr

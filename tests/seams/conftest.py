"""A distribution in a folder of its own, as pip would leave it, and the command line with that folder on its path."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from specdebug.base import plugins

Install = Callable[[str, str, Mapping[str, Mapping[str, str]]], Path]
Replay = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def installing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a module: its name, its source, and its entry points by kind. Returns the folder it lies in."""
    folder = tmp_path / "site"
    added: list[str] = []

    def install(module: str, source: str, points: Mapping[str, Mapping[str, str]]) -> Path:
        metadata = folder / f"{module}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (folder / f"{module}.py").write_text(source)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        groups = [
            f"[specdebug.{kind}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
            for kind, named in points.items()
        ]
        (metadata / "entry_points.txt").write_text("\n".join(groups))
        added.append(module)
        importlib.invalidate_caches()
        plugins.forget()
        return folder

    monkeypatch.syspath_prepend(str(folder))
    yield install
    for module in added:
        sys.modules.pop(module, None)
    plugins.forget()


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    """Write a scenario and run a command on it, in a process that finds what was installed."""

    def call(scenario: str, *argv: str, command: str = "replay") -> subprocess.CompletedProcess[str]:
        file = tmp_path / "outside.yaml"
        file.write_text(scenario)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), os.getcwd()])}
        words = [sys.executable, "-m", "specdebug", command, str(file), *argv]
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)

    return call

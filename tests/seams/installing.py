"""A distribution in a folder of its own, as pip would leave it: modules beside metadata with entry points."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from specdebug.base import plugins

Install = Callable[[str, str, Mapping[str, Mapping[str, str]]], Path]


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

"""Toy modules on disk, forgotten after each test."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

_numbers = itertools.count()


class Toys:
    """Writes modules of unique names, so that no test sees another's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: list[str] = []

    def write(self, text: str, name: str | None = None) -> str:
        """Write a module and return its name; a dotted name makes packages on the way."""
        name = name or f"toy_{next(_numbers)}"
        path = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(self.folder).parents:
            if parent.name:
                (self.folder / parent / "__init__.py").touch()
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        self.names.append(name)
        importlib.invalidate_caches()
        return name

    def path(self, name: str) -> str:
        return str(self.folder.joinpath(*name.split(".")).with_suffix(".py"))

    def load(self, text: str, name: str | None = None) -> ModuleType:
        return importlib.import_module(self.write(text, name))


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toys]:
    monkeypatch.syspath_prepend(str(tmp_path))
    toys = Toys(tmp_path)
    finders = list(sys.meta_path)
    yield toys
    assert sys.meta_path == finders, "a test left the import hook behind"
    for name in toys.names:
        sys.modules.pop(name, None)
        sys.modules.pop(name.partition(".")[0], None)


@pytest.fixture
def refusal() -> Callable[..., str]:
    """Call something and return the text of the ``PatchError`` it must raise."""
    from specdebug.patching import PatchError

    def call(function: Callable[..., object], *args: object, **kwargs: object) -> str:
        with pytest.raises(PatchError) as error:
            function(*args, **kwargs)
        text = str(error.value)
        assert "\n" not in text
        return text

    return call

"""Empty modules in the place of packages that an engine imports and, for what is run here, never uses."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class _Names(type):
    """A class each of whose attributes is another such class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _empty(name)


def _empty(name: str) -> type:
    """An empty class, to subclass, to make one of, or to annotate with."""
    return _Names(name, (), {"__init__": lambda self, *_, **__: None})


class EmptyModule(types.ModuleType):
    """A module whose every name is an empty class."""

    __version__ = "0"  # older than any version that is asked for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _empty(name)
        setattr(self, name, made)
        return made


class EmptyModuleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for some packages, and whatever is in them, where no real one is found."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def stand_in_for(packages: Sequence[str]) -> None:
    """Have these packages stood in for from now on, where they are not installed."""
    sys.meta_path.append(EmptyModuleFinder(packages))

"""The places in SGLang's source that taps, readers and stand-ins hold on to, and which of them a release has.

A release is not asked for its number: its files are read, never imported, so the same answer is had in SGLang's own
process and before anything is started (``targets/sglang/fit.py``). A place is ``module:name`` or ``module:Class.name``,
the module without ``sglang.`` in front. A name is there if a module binds it at its top, also by an import that only
some devices make; a class has what its body or its methods assign, and what its bases have.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

KERNELS = "sgl_kernel"
"""The package beside SGLang's that has what it imports where it is called; taken to have every name."""


class NoSeat(Exception):
    """A release has none of the places that something may be at."""


@dataclass(frozen=True)
class Seat:
    """Something of SGLang's, by the places that it has had, the newest first. ``look``: what is lost without it."""

    look: str
    places: tuple[str, ...]

    def place(self, source: Source) -> str:
        """The first place that is there. Raises NoSeat."""
        found = next((each for each in self.places if source.has(each)), None)
        if found is None:
            raise NoSeat(f"SGLang has no {' nor '.join(self.places)}")
        return found

    def find(self) -> tuple[Any, str]:
        """Its owner, a module or a class, and its name there, in this process's SGLang. Raises NoSeat."""
        module, _, names = self.place(installed()).partition(":")
        owner: Any = importlib.import_module(module if module == KERNELS else f"sglang.{module}")
        *classes, name = names.split(".")
        for each in classes:
            owner = getattr(owner, each)
        return owner, name


@dataclass
class _Class:
    """A class as its file has it: the names of its bases, and what it has itself."""

    bases: tuple[str, ...]
    names: frozenset[str]


@dataclass
class _Module:
    """A module's names, its classes, and where each imported name is from: module and name there."""

    names: frozenset[str]
    classes: dict[str, _Class]
    imported: dict[str, tuple[str, str]]


class Source:
    """SGLang's files below the folder of the package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: dict[str, _Module | None] = {}

    def has(self, place: str) -> bool:
        """Return True if a place is there; a bare ``module`` is one, too."""
        module, _, names = place.partition(":")
        if module == KERNELS:
            return True
        read = self._module(module)
        if read is None or not names:
            return read is not None
        owner, _, name = names.partition(".")
        return owner in read.names if not name else self._class_has(module, owner, name)

    def _class_has(self, module: str, owner: str, name: str) -> bool:
        """Return True if a class that a module has or imports, or one of its bases, has a name."""
        read = self._module(module)
        if read is None:
            return False
        if owner not in read.classes:
            origin = read.imported.get(owner)
            return origin is not None and self._class_has(*origin, name)
        found = read.classes[owner]
        return name in found.names or any(self._class_has(module, base, name) for base in found.bases)

    def _module(self, module: str) -> _Module | None:
        if module not in self._modules:
            self._modules[module] = self._read(module)
        return self._modules[module]

    def _read(self, module: str) -> _Module | None:
        path = self.folder.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            try:
                return _module_of(ast.parse(file.read_bytes()), module)
            except (OSError, SyntaxError, ValueError):
                continue
        return None


@cache
def installed() -> Source:
    """The files of the SGLang that this process imports. Raises NoSeat where there is none."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise NoSeat("there is no SGLang here")
    return Source(Path(next(iter(spec.submodule_search_locations))))


def _module_of(tree: ast.Module, module: str) -> _Module:
    names: set[str] = set()
    classes: dict[str, _Class] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in _top(tree.body):
        names.update(_bound(node))
        if isinstance(node, ast.ClassDef):
            bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
            classes[node.name] = _Class(bases, frozenset(_members(node)))
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, module)
            imported |= {alias.asname or alias.name: (origin, alias.name) for alias in node.names}
    return _Module(frozenset(names), classes, imported)


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those within conditions and ``try`` included."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from _top(getattr(node, part, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _top(handler.body)


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds where it stands."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def _members(node: ast.ClassDef) -> Iterator[str]:
    """What a class binds in its body, and what its methods assign to their first argument."""
    for each in _top(node.body):
        yield from _bound(each)
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.args.args:
            own = each.args.args[0].arg
            for inner in ast.walk(each):
                if (
                    isinstance(inner, ast.Attribute)
                    and isinstance(inner.ctx, ast.Store)
                    and isinstance(inner.value, ast.Name)
                    and inner.value.id == own
                ):
                    yield inner.attr


def _origin(node: ast.ImportFrom, module: str) -> str:
    """The module that names are imported from, without ``sglang.`` in front."""
    name = node.module or ""
    if node.level:
        return ".".join([*module.split(".")[: -node.level], *filter(None, [name])])
    return name.removeprefix("sglang.")

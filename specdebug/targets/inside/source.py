"""An engine's source files, read and never imported: which names are there.

A place is ``module:name`` or ``module:Class.name``, the module below the engine's package. A name is there if a module
binds it at its top, also by an import that only some devices make; a class has what its body or its methods assign, and
what its bases have.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class _Class:
    """A class as its file has it: the names of its bases, and what it has itself."""

    bases: tuple[str, ...]
    names: frozenset[str]


@dataclass
class _Module:
    """A module's names, its classes, its functions' parameters, and where each imported name is from: module and name
    there."""

    names: frozenset[str]
    functions: dict[str, tuple[str, ...]]
    classes: dict[str, _Class]
    imported: dict[str, tuple[str, str]]


class Source:
    """The files below the folder of a package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: dict[str, _Module | None] = {}

    def has(self, place: str) -> bool:
        """Return True if a place is there; a bare ``module`` is one, too."""
        module, _, names = place.partition(":")
        read = self._module(module)
        if read is None or not names:
            return read is not None
        owner, _, name = names.partition(".")
        return owner in read.names if not name else self._class_has(module, owner, name)

    def parameters(self, place: str) -> tuple[str, ...]:
        """The names of what a module's function takes; nothing of one that is not there."""
        module, _, name = place.partition(":")
        read = self._module(module)
        return () if read is None else read.functions.get(name, ())

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
                return _module_of(ast.parse(file.read_bytes()), module, self.folder.name)
            except (OSError, SyntaxError, ValueError):
                continue
        return None


def _module_of(tree: ast.Module, module: str, package: str) -> _Module:
    names: set[str] = set()
    classes: dict[str, _Class] = {}
    functions: dict[str, tuple[str, ...]] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in _top(tree.body):
        names.update(_bound(node))
        if isinstance(node, ast.ClassDef):
            bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
            classes[node.name] = _Class(bases, frozenset(_members(node)))
        elif isinstance(node, ast.FunctionDef):
            given = node.args
            functions[node.name] = tuple(each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs))
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, module, package)
            imported |= {alias.asname or alias.name: (origin, alias.name) for alias in node.names}
    return _Module(frozenset(names), functions, classes, imported)


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
    """The names that a class binds in its body, and what its methods assign to their first argument."""
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


def _origin(node: ast.ImportFrom, module: str, package: str) -> str:
    """The module that names are imported from, below the package."""
    name = node.module or ""
    if node.level:
        return ".".join([*module.split(".")[: -node.level], *filter(None, [name])])
    return name.removeprefix(f"{package}.")

"""An engine's source files, read and never imported: which names are there.

A place is ``module:name`` or ``module:Class.name``, the module below the engine's package. A name is there if a module
binds it at its top, also by an import that only some devices make; a class has what its body or its methods assign, and
what its bases have.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class _Module(NamedTuple):
    """A module's names, its functions' parameters, its classes' bases and own names, and where each imported name is
    from: module and name there."""

    names: set[str]
    functions: dict[str, tuple[str, ...]]
    classes: dict[str, tuple[list[str], set[str]]]
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
            return owner in read.imported and self._class_has(*read.imported[owner], name)
        bases, names = read.classes[owner]
        return name in names or any(self._class_has(module, base, name) for base in bases)

    def _module(self, module: str) -> _Module | None:
        """What a module's file has; None where there is none that can be read."""
        path = self.folder.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if module in self._modules:
                break
            try:
                self._modules[module] = self._read(ast.parse(file.read_bytes()), module)
            except (OSError, SyntaxError, ValueError):
                continue
        return self._modules.setdefault(module, None)

    def _read(self, tree: ast.Module, module: str) -> _Module:
        read = _Module(set(), {}, {}, {})
        for node in _top(tree.body):
            read.names.update(_bound(node))
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                read.classes[node.name] = bases, set(_members(node))
            elif isinstance(node, ast.FunctionDef):
                given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                read.functions[node.name] = tuple(each.arg for each in given)
            elif isinstance(node, ast.ImportFrom):
                origin = (node.module or "").removeprefix(f"{self.folder.name}.")
                if node.level:
                    origin = ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])
                read.imported.update({alias.asname or alias.name: (origin, alias.name) for alias in node.names})
        return read


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those within conditions and ``try`` included."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
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
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def _members(node: ast.ClassDef) -> Iterator[str]:
    """The names that a class binds in its body, and what its methods assign to their first argument."""
    for each in _top(node.body):
        yield from _bound(each)
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.args.args:
            own = each.args.args[0].arg
            stored = [part for part in ast.walk(each) if isinstance(part, ast.Attribute)]
            stored = [part for part in stored if isinstance(part.ctx, ast.Store)]
            yield from (part.attr for part in stored if isinstance(part.value, ast.Name) and part.value.id == own)

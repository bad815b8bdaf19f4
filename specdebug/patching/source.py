"""Patches as values, and the source text that they edit, found without importing it."""

from __future__ import annotations

import ast
import importlib.machinery
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from specdebug.base.errors import ContentError, Where, did_you_mean, one_line

if TYPE_CHECKING:
    from typing import TypeAlias

FunctionNode: TypeAlias = Union[ast.FunctionDef, ast.AsyncFunctionDef]
ScopeNode: TypeAlias = Union[FunctionNode, ast.ClassDef]

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_QUALNAME = re.compile(r"[^\W\d]\w*(\.(<locals>\.)?[^\W\d]\w*)*\Z")
_NOWHERE = Where("<patch>")


class PatchError(ContentError):
    """A patch does not fit: its module, function or text is missing, ambiguous, taken, or would not run.

    Raised before anything has been changed. ``where`` is the edit's place in the toggle file.
    """


@dataclass(frozen=True)
class Edit:
    """Replace the lines ``match`` by the lines ``replacement``, whatever their common indentation. None deletes them.

    ``id``: as in ``27338#1``; keys ``Applied.hits()``. ``match_at``, ``replacement_at``: places of the two texts' first
    lines in the toggle file; one without a column is a block's, whose line ``n`` is ``n - 1`` lines further down.
    """

    id: str
    match: str
    replacement: str
    match_at: Where = _NOWHERE
    replacement_at: Where = _NOWHERE

    def replacement_line(self, number: int) -> Where:
        """Place of line ``number`` (from 1) of the replacement in the toggle file."""
        first = self.replacement_at
        return first if first.column or not first.line else Where(first.path, first.line + number - 1)


@dataclass(frozen=True)
class Patch:
    """Edits of one target. ``owner``: who wants it, as errors name it ("toggle 27338"). ``where``: in the toggle file.

    ``qualname``: function, method, nested function or class of the module, ``<locals>`` optional; empty for all of it.
    """

    owner: str
    module: str
    qualname: str
    edits: tuple[Edit, ...]
    where: Where = _NOWHERE

    @property
    def target(self) -> str:
        """``module:qualname``, as written in a toggle."""
        return f"{self.module}:{self.qualname}" if self.qualname else self.module

    @property
    def plain_name(self) -> str:
        """The qualified name without ``<locals>``."""
        return self.qualname.replace("<locals>.", "")

    @classmethod
    def of(cls, owner: str, target: str, *edits: tuple[str, str]) -> Patch:
        """A patch from (match, replacement) pairs, without a toggle file. Raises as :func:`parse_target`."""
        numbered = (Edit(f"{owner}#{n}", match, new) for n, (match, new) in enumerate(edits, start=1))
        return cls(owner, *parse_target(target), tuple(numbered))


def parse_target(text: str) -> tuple[str, str]:
    """``pkg.mod:Class.method`` in two halves, the second empty for a module's own level. Raises ValueError."""
    module, _, qualname = text.partition(":")
    if not _MODULE.match(module) or (qualname and not _QUALNAME.match(qualname)):
        raise ValueError("a target is written 'package.module:Class.function'")
    return module, qualname


@dataclass(frozen=True)
class ModuleSource:
    """A module's text as the interpreter reads it. ``lines`` counts from 0, everything else from 1."""

    name: str
    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def spans(self) -> dict[str, list[tuple[int, int]]]:
        """First and last line of every function and class by qualified name, without ``<locals>``.

        A name may have several spans: a property's getter and setter, or the two branches of an ``if``.
        """
        spans: dict[str, list[tuple[int, int]]] = {"": [(1, len(self.lines))]}
        for qualname, node in walk_scopes(self.tree):
            plain = qualname.replace("<locals>.", "")
            spans.setdefault(plain, []).append((first_line(node), node.end_lineno or node.lineno))
        return spans


def walk_scopes(tree: ast.Module) -> Iterator[tuple[str, ScopeNode]]:
    """Every function and class of a module with its qualified name, outer before inner, in source order."""
    work: list[tuple[str, ast.AST]] = [("", tree)]
    while work:
        prefix, node = work.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            qualname = prefix + node.name
            yield qualname, node
            prefix = qualname + ("." if isinstance(node, ast.ClassDef) else ".<locals>.")
        work.extend((prefix, child) for child in reversed(list(ast.iter_child_nodes(node))))


def first_line(node: ast.stmt) -> int:
    """Line a statement starts on, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def find_source(module: str, where: Where) -> ModuleSource:
    """The source of a module, imported already or not. Runs none of its code, nor its parents'.

    Raises PatchError if there is no such module, or it has no Python source, or the source does not parse.
    """
    spec = _find_spec(module, where)
    get_source = getattr(spec.loader, "get_source", None)
    if get_source is None and spec.origin and spec.origin.endswith(".py"):  # of pytest's loader, which only compiles
        get_source = importlib.machinery.SourceFileLoader(module, spec.origin).get_source
    try:
        text = get_source(module) if get_source else None
    except (ImportError, OSError, SyntaxError, UnicodeError) as error:
        raise PatchError(f"the source of {module} cannot be read: {one_line(str(error))}", where) from None
    if text is None or not spec.origin:
        kind = "is a namespace package" if spec.loader is None else "comes without Python source"
        if spec.origin in ("built-in", "frozen"):
            kind = f"is {spec.origin.removesuffix('-in')} into Python"
        raise PatchError(f"{module} {kind} and cannot be patched", where)
    source = ModuleSource(module, spec.origin, text)
    try:
        _ = source.tree
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PatchError(f"{source.path} does not parse: {one_line(str(error))}", where) from None
    return source


def _find_spec(module: str, where: Where) -> importlib.machinery.ModuleSpec:
    path: Sequence[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    for name in accumulate(module.split("."), "{}.{}".format):
        if spec is not None and path is None:
            raise PatchError(f"no module named '{module}': {spec.name} is not a package", where)
        loaded = sys.modules.get(name)
        found = getattr(loaded, "__spec__", None) if loaded is not None else _search(name, path)
        if found is None and loaded is None:
            siblings = [entry.name for entry in pkgutil.iter_modules(path)] if path else []
            hint = did_you_mean(name.rpartition(".")[2], siblings) if path else ""
            raise PatchError(f"no module named '{name}'{hint}", where)
        if not isinstance(found, importlib.machinery.ModuleSpec):
            raise PatchError(f"{name} was not loaded from a file and cannot be patched", where)
        spec = found
        path = getattr(loaded, "__path__", None) or spec.submodule_search_locations
    assert spec is not None
    return spec


def _search(name: str, path: Sequence[str] | None) -> Any:
    """Ask the interpreter's finders as an import would, without importing the parent package."""
    for find_spec in [each.find_spec for each in sys.meta_path if hasattr(each, "find_spec")]:
        try:
            spec = find_spec(name, path, None)
        except (ImportError, ValueError, OSError):
            continue
        except KeyError:  # a namespace package: the finder asks its parent, which is not imported
            folders = [folder for entry in path or () if (folder := Path(entry, name.rpartition(".")[2])).is_dir()]
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True) if folders else None
            if spec is not None:
                spec.submodule_search_locations = list(map(str, folders))
        if spec is not None:
            return spec
    return None

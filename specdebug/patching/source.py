"""Find a module's source text without importing it, and the lines each qualified name spans."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

from specdebug.base.errors import Where, did_you_mean
from specdebug.base.yamlio import one_line
from specdebug.patching.spec import PatchError

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode: TypeAlias = FunctionNode | ast.ClassDef


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
        if isinstance(node, FunctionNode | ast.ClassDef):
            qualname = prefix + node.name
            yield qualname, node
            prefix = qualname + ("." if isinstance(node, ast.ClassDef) else ".<locals>.")
        work.extend((prefix, child) for child in reversed(list(ast.iter_child_nodes(node))))


def first_line(node: ast.stmt) -> int:
    """Line a statement starts on, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


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
    for name in accumulate(module.split("."), "{}.{}".format):
        loaded = sys.modules.get(name)
        spec = getattr(loaded, "__spec__", None) if loaded is not None else _search(name, path)
        if spec is None and loaded is None:
            siblings = [entry.name for entry in pkgutil.iter_modules(path)] if path else []
            hint = did_you_mean(name.rpartition(".")[2], siblings) if path else ""
            raise PatchError(f"no module named '{name}'{hint}", where)
        if not isinstance(spec, importlib.machinery.ModuleSpec):
            raise PatchError(f"{name} was not loaded from a file and cannot be patched", where)
        if name == module:
            return spec
        path = getattr(loaded, "__path__", None) or spec.submodule_search_locations
        if path is None:
            raise PatchError(f"no module named '{module}': {name} is not a package", where)
    raise AssertionError("a module name has at least one part")


def _search(name: str, path: Sequence[str] | None) -> Any:
    """Ask the interpreter's finders as an import would, without importing the parent package."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is None:
            continue
        try:
            spec = find_spec(name, path, None)
        except (ImportError, ValueError, OSError):
            continue
        except KeyError:  # a namespace package: the finder asks its parent, which is not imported
            spec = _namespace(name, path or ())
        if spec is not None:
            return spec
    return None


def _namespace(name: str, path: Sequence[str]) -> importlib.machinery.ModuleSpec | None:
    """A namespace package below a parent that is not imported: the folders of its name."""
    folders = [folder for entry in path if (folder := Path(entry, name.rpartition(".")[2])).is_dir()]
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = list(map(str, folders))
    return spec if folders else None

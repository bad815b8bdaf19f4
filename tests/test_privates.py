"""No module outside the engine uses what it keeps to itself: names of the engine that begin with one underscore."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import specdebug

PACKAGE = Path(specdebug.__file__).resolve().parent
ROOT = PACKAGE.parent
ENGINE = PACKAGE / "engine"
BY_NAME = ("getattr", "setattr", "delattr", "hasattr", "attrgetter")
"""Functions that take the name of an attribute as text."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and len(name) > 1


def defined_in(source: str) -> set[str]:
    """Private names that a module defines: functions, classes, its own variables, and attributes of its classes."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {name for name in names if private(name)}


@cache
def engine_names() -> frozenset[str]:
    """Every private name of the engine."""
    files = ENGINE.rglob("*.py")
    return frozenset(name for file in files for name in defined_in(file.read_text("utf-8")))


def trespasses(source: str, theirs: frozenset[str]) -> Iterator[str]:
    """Uses of those names on other objects than the module's own, each as ``LINE: name``."""
    own = defined_in(source)
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specdebug.engine"):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in BY_NAME:
                names = [
                    each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
                ]
        for name in names:
            if private(name) and name in theirs and name not in own:
                yield f"{node.lineno}: {name}"


def outside() -> Iterator[Path]:
    """Every file of ours but the engine's and the tests, which may look inside what they test."""
    for folder in (PACKAGE, ROOT / "benchmarks", ROOT / "tools"):
        for file in sorted(folder.rglob("*.py")):
            if not {ENGINE, PACKAGE / "_content"} & set(file.parents):
                yield file


def test_nobody_uses_a_private_name_of_the_engine() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{use}"
        for file in outside()
        for use in trespasses(file.read_text("utf-8"), engine_names())
    ]
    assert not found, "use what specdebug/events.py and engine/inspect.py offer:\n" + "\n".join(found)

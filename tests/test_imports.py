"""Imports point one way, as docs/architecture.md draws it: nothing knows of what is built upon it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import specdebug

ROOT = Path(specdebug.__file__).resolve().parent

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "files", "interpreters", "interrupts", "random_streams", "redaction", "reproducible"),
    ("plugins",),
    ("attention_plans",),
    ("configuration", "engine_flags", "schema", "yamlio"),
    (
        "async_probe",
        "assets",
        "bisect",
        "content",
        "corpus",
        "kernel_memory",
        "minimise",
        "patching",
        "reference",
        "stats",
    ),
    ("logs", "toggles"),
    ("drift", "engine"),
    ("faults", "workers"),
    ("records",),
    ("installs",),
    ("targets",),
    ("verdict",),
    ("scenario",),
    ("run",),
    ("loops", "server"),
    ("bundle", "diverge", "doctor", "evaluation", "triage", "trials"),
    ("mutants", "shrink"),
    ("hunt",),
    ("report",),
    ("cli", "pytest_plugin"),
    ("__main__",),
)
"""Rooms from the ground up. One may import those of lower layers only, and of its own layer what ``BESIDE`` says."""

BESIDE = {"schema": {"yamlio"}, "yamlio": {"schema"}}

ONLY = {
    "async_probe": set[str](),
    "kernel_memory": set[str](),
    "engine": {"async_probe", "assets", "attention_plans", "errors", "files", "plugins"},
    "reproducible": set[str](),
    "bisect": {"reproducible"},
    "minimise": {"errors", "reproducible"},
    "stats": {"errors", "reproducible"},
}
"""Rooms that import less than they might: the engine knows nothing of toggles, and what is pure stays so."""


def room_of(parts: tuple[str, ...]) -> str:
    """The folder or module of the package that something lies in; nothing for the package's own ``__init__.py``."""
    return parts[0].removesuffix(".py").removeprefix("__init__") if parts else ""


def imports_of(source: str, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and room of everything that a module of ours imports, wherever in it. ``parts``: of its path."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["specdebug", *parts[: len(parts) - node.level]] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "specdebug" else [module]
        for name in names:
            package, *rest = name.split(".")
            if package == "specdebug" and rest and not rest[0].startswith("__version__"):
                yield node.lineno, rest[0]


def wrong_way(source: str, parts: tuple[str, ...]) -> Iterator[str]:
    """The imports of a module that point the wrong way, each as ``FILE:LINE: what``."""
    floor = {"": -1, **{room: number for number, layer in enumerate(LAYERS) for room in layer}}
    room = room_of(parts)
    for line, other in imports_of(source, parts):
        allowed = other == room or other in BESIDE.get(room, ()) or floor[other] < floor[room]
        if not allowed or other not in ONLY.get(room, {other}) | {room}:
            yield f"specdebug/{'/'.join(parts)}:{line}: {room} must not import {other}"


def test_every_room_has_its_place() -> None:
    placed = [room for layer in LAYERS for room in layer]
    there = {room_of(file.relative_to(ROOT).parts) for file in ROOT.rglob("*.py")} - {""}
    assert sorted(placed) == sorted(there), "a new room belongs into LAYERS and docs/architecture.md"


def test_imports_point_one_way() -> None:
    files = sorted(ROOT.rglob("*.py"))
    found = [line for file in files for line in wrong_way(file.read_text("utf-8"), file.relative_to(ROOT).parts)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "parts", "said"),
    [
        ("import torch\nimport specdebug.report.lines\n", ("bundle", "run.py"), "2: bundle must not import report"),
        ("def f():\n    import specdebug.cli.main\n", ("report", "html", "svg.py"), "2: report must not import cli"),
        ("from specdebug import loops\n", ("workers", "pool.py"), "1: workers must not import loops"),
        ("from ..workers import pool\n", ("engine", "engine.py"), "1: engine must not import workers"),
        ("from specdebug.toggles import Toggle\n", ("engine", "graph", "x.py"), "1: engine must not import toggles"),
        ("from specdebug.trials import search\n", ("triage", "run.py"), "1: triage must not import trials"),
    ],
)  # fmt: skip
def test_an_import_against_it_is_named_with_its_line(text: str, parts: tuple[str, ...], said: str) -> None:
    assert list(wrong_way(text, parts)) == [f"specdebug/{'/'.join(parts)}:{said}"]


def test_what_is_allowed_is_not_named() -> None:
    text = "from specdebug import __version__\nfrom specdebug.errors import SpecDebugError\nfrom . import batch\n"
    assert not list(wrong_way(text, ("engine", "engine.py")))

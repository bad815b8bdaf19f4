"""Imports point one way, as docs/architecture.md draws it: nothing knows of what is built upon it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import specdebug

ROOT = Path(specdebug.__file__).resolve().parent

LAYERS: tuple[tuple[str, ...], ...] = (
    ("base", "async_probe", "kernel_memory", "events"),
    ("search", "patching", "reference", "logs", "engine"),
    ("faults", "workers"),
    ("targets", "verdict"),
    ("scenario",),
    ("run", "campaign"),
    ("bundle", "diverge"),
    ("apps",),
    ("report",),
    ("cli", "pytest_plugin"),
    ("__main__",),
)
"""Rooms from the ground up. One may import those of lower layers only."""

ONLY = {
    "base": set[str](),
    "async_probe": set[str](),
    "kernel_memory": set[str](),
    "events": set[str](),
    "engine": {
        "async_probe",
        "events",
        *(f"base.{each}" for each in ("assets", "attention_plans", "errors", "files", "plugins")),
        *(f"base.{each}" for each in ("schema", "yamlio", "features")),  # how its options are declared and read
    },
    "search": {"base.errors", "base.reproducible", "base.trial"},
}
"""Rooms that import less than they might: the engine knows nothing of toggles, and what is pure stays so."""


def room_of(parts: tuple[str, ...]) -> str:
    """The folder or module of the package that something lies in; nothing for the package's own ``__init__.py``."""
    return parts[0].removesuffix(".py").removeprefix("__init__") if parts else ""


def imports_of(source: str, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and room of everything that a module of ours imports, wherever in it; of ``base``, the module, too.
    ``parts``: of its path."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["specdebug", *parts[: len(parts) - node.level]] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            whole = module in ("specdebug", "specdebug.base")
            names = [f"{module}.{alias.name}" for alias in node.names] if whole else [module]
        for name in names:
            package, *rest = name.split(".")
            if package == "specdebug" and rest and not rest[0].startswith("__version__"):
                yield node.lineno, ".".join(rest[: 2 if rest[0] == "base" else 1])


def wrong_way(source: str, parts: tuple[str, ...]) -> Iterator[str]:
    """The imports of a module that point the wrong way, each as ``FILE:LINE: what``."""
    floor = {"": -1, **{room: number for number, layer in enumerate(LAYERS) for room in layer}}
    room = room_of(parts)
    for line, other in imports_of(source, parts):
        its_room = other.partition(".")[0]
        allowed = its_room == room or floor[its_room] < floor[room]
        if not allowed or (its_room != room and other not in ONLY.get(room, {other})):
            yield f"specdebug/{'/'.join(parts)}:{line}: {room} must not import {other}"


def test_every_room_has_its_place() -> None:
    placed = [room for layer in LAYERS for room in layer]
    there = {room_of(file.relative_to(ROOT).parts) for file in ROOT.rglob("*.py")} - {""}
    assert sorted(placed) == sorted(there), "a new room belongs into LAYERS and docs/architecture.md"


def test_imports_point_one_way() -> None:
    files = sorted(ROOT.rglob("*.py"))
    found = [line for file in files for line in wrong_way(file.read_text("utf-8"), file.relative_to(ROOT).parts)]
    assert not found, "\n".join(found)

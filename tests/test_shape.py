"""The shape of the source: no function is long, and no two public classes have one name."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import specdebug

ROOT = Path(specdebug.__file__).resolve().parent

MOST_LINES = 60
MOST_LINES_OF_A_COMMAND = 40

MODULES = sorted(ROOT.rglob("*.py"))


def functions_of(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of every function, also of those in other functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def public_classes_of(source: str) -> list[str]:
    return [
        node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


@pytest.mark.parametrize("room", sorted({path.relative_to(ROOT).parts[0] for path in MODULES}))
def test_no_function_is_long(room: str) -> None:
    """A Triton kernel is one function whatever its length; only its launcher could be cut."""
    most = MOST_LINES_OF_A_COMMAND if room == "cli" else MOST_LINES
    long = [
        f"{path.relative_to(ROOT)}:{line}: {name} has {lines} lines, of {most} at most"
        for path in MODULES
        if path.relative_to(ROOT).parts[0] == room and "triton" not in path.parts
        for name, line, lines in functions_of(path.read_text(encoding="utf-8"))
        if lines > most
    ]
    assert not long, "\n".join(long)


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for name in public_classes_of(path.read_text(encoding="utf-8")):
            places[name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}

"""Whatever happens to a command from outside, it ends as ``matrix.py`` declares, and what it had come to is told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import typer

from specdebug.cli.main import app
from tests.outside.matrix import CONDITIONS, ENDLESS, FAST, INSTALLING, ROWS, Condition, Row
from tests.outside.playing import Ended, has_small_disks, play

OURS = (".specdebug/", ".sqlite", ".lock")
"""In names of what a search keeps for itself."""

SIGNALLED = (129, 130, 143)


def leaves(group: Any, name: str = "") -> Iterator[str]:
    """Every command that a user is shown."""
    for word, below in getattr(group, "commands", {}).items():
        if not below.hidden:
            yield from leaves(below, f"{name} {word}".strip())
    if not hasattr(group, "commands"):
        yield name


def test_every_command_has_a_row() -> None:
    assert {row.command for row in ROWS} | ENDLESS | INSTALLING == set(leaves(typer.main.get_command(app)))
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)


def test_the_selection_has_every_condition() -> None:
    assert {condition for _, condition in FAST} == {condition.name for condition in CONDITIONS} - {"INT"}
    assert {row for row, _ in FAST} <= {row.name for row in ROWS}


def cases() -> list[Any]:
    """Every row with every condition."""
    return [
        pytest.param(
            row,
            condition,
            id=f"{row.name}-{condition.name}",
            marks=() if (row.name, condition.name) in FAST else pytest.mark.slow,
        )
        for row in ROWS
        for condition in CONDITIONS
    ]


@pytest.mark.parametrize(("row", "condition"), cases())
def test_it_ends_as_declared_and_tells_what_it_had_come_to(row: Row, condition: Condition, tmp_path: Path) -> None:
    if condition.kind == "disk" and not has_small_disks():
        pytest.skip("no disk of one's own may be mounted here")
    ended = play(row, condition, tmp_path)
    assert ended.code in row.exit_codes(condition), ended
    assert "Traceback" not in ended.err
    assert "internal error" not in ended.err
    wrong = condition.kind == "stdout" or ended.code not in (row.plain, *SIGNALLED)
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    if condition.kind == "disk":  # a line for each file that had no room
        assert wrong <= len(errors) <= max(1, len(row.files)), ended
    else:
        assert len(errors) == wrong or (condition.kind == "descriptors" and len(errors) == 1), ended
    assert ended.left == []
    assert [name for name, data in ended.files.items() if not data] == []
    told(row, condition, ended)


def told(row: Row, condition: Condition, ended: Ended) -> None:
    """What was finished is told, on stdout or in the files."""
    results = {
        name: data.decode(errors="replace")
        for name, data in ended.files.items()
        if not any(ours in name for ours in OURS)
    }
    match condition.kind:
        case "signals" if row.workers is None:
            assert (ended.out, ended.err, ended.files) == ("", "", {})
        case "signals":
            assert row.told in " ".join(ended.out.split()), ended
            assert set(results) == {name for name, content in row.files.items() if content is not None}
            assert {name for name, text in results.items() if (row.files[name] or "") not in text} == set(), ended
        case "pipe" | "stdout":
            assert set(results) == set(row.files)
        case "disk":
            assert row.reported in " ".join(ended.out.split()), ended
        case "folder" if row.files:
            assert (ended.out, ended.files) == ("", {})
    for name, text in results.items():
        if name.endswith(".json"):
            json.loads(text)
        elif name.endswith(".xml"):
            ET.fromstring(text)

"""Documents do not name what is not there: files, links, tests, commands, options, targets of make."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from specdebug.cli.main import app
from specdebug.faults.catalogue import CLASSES
from specdebug.patching.toggles import load_registry
from tools import abilities_page, grammar_page, make_questions, mined_page, outside

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *DOCS,
    *(ROOT / kind / "README.md" for kind in ("scenarios", "toggles", "probes")),
    *sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")),
]
FOLDERS = "specdebug|tests|tools|benchmarks|docs|scenarios|toggles|probes|\\.ci|\\.github"

LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)(?:::(\w+))?`")
PLACEHOLDER = re.compile(r"\b(?:PR|NAME|FILE)\b")
BUILT = {"specdebug/_content/"}
"""Only in a wheel."""

NAMED_DOCUMENT = re.compile(r"`([\w./-]+\.md)`")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
COMMAND = re.compile(r"(?:^(?:[ \t|>]+(?:\$ )?|\$ )(?:[A-Z_]+=\S+ )*|`)specdebug ([^`#\n]*)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
END_OF_COMMAND = re.compile(r"(?:^| )-- |[;|<>&](?= |$)| \d?>")
TARGET = re.compile(r"(?:^    (?:\$ )?|`)make ((?:[a-z][a-z-]* ?)+)", re.MULTILINE)

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def anchors(text: str) -> set[str]:
    """The names by which a document's headings can be linked to, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}


@cache
def commands() -> dict[str, set[str]]:
    """Every command with the options it takes: of ``toggles list`` and of ``toggles`` alike."""
    found: dict[str, set[str]] = {}

    def enter(command: Any, name: str) -> None:
        found[name] = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        for word, below in getattr(command, "commands", {}).items():
            enter(below, f"{name} {word}".strip())

    enter(typer.main.get_command(app), "")
    return found


def called(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Every call of specdebug in a text: as written, its longest known command, and the options that follow."""
    for match in COMMAND.finditer(text):
        ours = END_OF_COMMAND.split(match[1], maxsplit=1)[0]
        words = re.findall(r"^[a-z]+(?: [a-z]+)?", ours)
        name = next((n for n in (*words, words[0].partition(" ")[0]) if n in commands()), None) if words else ""
        yield match[0].strip(), name if name is not None else "?", OPTION.findall(ours)


def test_the_index_links_every_document() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    linked = {target.partition("#")[0] for target in LINK.findall(index)}
    assert {str(path.relative_to(ROOT / "docs")) for path in DOCS} - {"README.md"} - linked == set()


@every_document
def test_no_link_is_dead(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        other = document.parent / name if name else document
        assert other.exists(), target
        if anchor:
            assert anchor in anchors(other.read_text()), target


@every_document
def test_files_and_tests_that_are_named_are_there(document: Path) -> None:
    text = document.read_text()
    for name, test in PATH.findall(text):
        if PLACEHOLDER.search(name) or name in BUILT:
            continue
        assert (ROOT / name).exists(), name
        if test:
            assert re.search(rf"^(?:async )?def {test}\(", (ROOT / name).read_text(), re.MULTILINE), f"{name}::{test}"
    for name in NAMED_DOCUMENT.findall(text):
        assert any((folder / name).exists() for folder in (document.parent, ROOT, ROOT / "docs")), name


@every_document
def test_commands_and_options_that_are_shown_are_there(document: Path) -> None:
    for line, command, options in called(document.read_text()):
        assert command in commands(), line
        known = commands()[command]
        assert not set(options) - known, f"{line}: {command or 'specdebug'} has no {sorted(set(options) - known)}"


@every_document
def test_targets_of_make_that_are_shown_are_there(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {word for words in TARGET.findall(document.read_text()) for word in words.split()}
    assert shown - targets == set()


@pytest.mark.parametrize("tool", [grammar_page, make_questions, outside], ids=lambda tool: tool.__name__)
def test_what_a_tool_makes_is_what_it_would_make_now(tool: ModuleType) -> None:
    """The page of all keys, the shipped questions, the page of interruptions."""
    assert tool.main(["--check"]) == 0


def test_the_readme_counts_the_classes_of_damage() -> None:
    assert f"# {len(CLASSES)} classes of damage" in (ROOT / "README.md").read_text()


def test_the_table_of_abilities_is_made_of_what_was_measured() -> None:
    cells = [
        {"relation": "plain", "verdict": "pass", "signature": "", "why": "", "expected": False},
        {"relation": "chunks", "verdict": "fail", "signature": "twin@chunks", "why": "4, not 1", "expected": False},
    ]
    row = {
        "scenario": "some",
        "algorithm": "EAGLE, chains",
        "architecture": "Llama",
        "day": "2026-11-26",
        "cells": cells,
    }
    page = f"before\n{abilities_page.BEGIN}\nold\n{abilities_page.END}\nafter\n"
    made = abilities_page.written(page, [{"target": "vllm/v2==0.32.0", "rows": [row]}])
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "| `some` | EAGLE, chains | Llama | yes | **no** |" in made
    assert "- `some`, `twin@chunks`: 4, not 1. Not known to the scenario." in made
    assert "old" not in made
    assert abilities_page.written(made, [{"target": "vllm/v2==0.32.0", "rows": [row]}]) == made
    with pytest.raises(ValueError, match="has no <!-- abilities -->"):
        abilities_page.written("no marks", [])


def test_the_table_of_mined_fixes_is_that_of_its_facts_and_the_registry() -> None:
    fixes, toggles = mined_page.rows(), {each.pr: each for each in load_registry().all}
    page = mined_page.PAGE.read_text(encoding="utf-8")
    assert page == mined_page.written(page, mined_page.section(fixes, toggles))
    shown = {each["pr"] for each in fixes if each["engine"] in getattr(toggles.get(int(each["pr"])), "detected_in", ())}
    assert not [each["pr"] for each in fixes if each["pr"] not in shown and not each["why"]], (
        "each of the rest has its reason"
    )

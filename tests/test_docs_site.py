"""The site of the documents: its navigation names every page once, and what is made of the code is written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
mkdocs = pytest.importorskip("mkdocs.structure.files", reason="make docs installs it")


def pages(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for each in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages(each) if isinstance(each, list) else [each]


def test_every_document_is_in_the_navigation_once() -> None:
    from tools import docs_site

    named = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(there | {*docs_site.OUTSIDE} | {*docs_site.WRITTEN})


def test_pages_of_the_code_have_a_row_for_each_thing() -> None:
    from specdebug.faults.catalogue import CLASSES
    from tools import docs_site

    text = "\n".join(docs_site.faults())
    assert text.count("\n| `") == len(CLASSES)
    assert "## specdebug replay" in "\n".join(docs_site.commands())
    assert "| signature |" in "\n".join(docs_site.glossary())

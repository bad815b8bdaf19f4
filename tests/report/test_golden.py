"""The wording of every command is that of tests/golden/ and of the documents' transcripts; ``python tools/golden.py
--docs`` writes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.golden import FOLDER, golden_texts
from tools.golden import CHEAP, documents, refreshed


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return golden_texts()


def test_the_folder_has_a_file_for_each_command_that_is_told(texts: dict[str, str]) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(texts)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.txt")))
def test_what_a_command_says_is_as_it_was_read(name: str, texts: dict[str, str]) -> None:
    assert texts[name] == (FOLDER / name).read_text(encoding="utf-8"), "if it is meant: python tools/golden.py"


@pytest.mark.parametrize("wanted", [CHEAP.fullmatch, pytest.param(bool, marks=pytest.mark.slow)], ids=["cheap", "all"])
@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_a_document_s_transcripts_are_what_is_printed(document: Path, wanted: object) -> None:
    _, changes = refreshed(document.read_text("utf-8"), wanted)  # type: ignore[arg-type]
    assert not changes, "\n".join(changes)

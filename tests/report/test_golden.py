"""The wording of every command is that of tests/golden/; ``python tools/golden.py`` writes it anew."""

from __future__ import annotations

import pytest

from tests.report.golden import FOLDER, golden_texts


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return golden_texts()


def test_the_folder_has_a_file_for_each_command_that_is_told(texts: dict[str, str]) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(texts)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.txt")))
def test_what_a_command_says_is_as_it_was_read(name: str, texts: dict[str, str]) -> None:
    assert texts[name] == (FOLDER / name).read_text(encoding="utf-8"), "if it is meant: python tools/golden.py"

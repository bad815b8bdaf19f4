"""The page of interruptions is what the matrix declares, and its tool finds out when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.outside.matrix import CONDITIONS, ROWS
from tools.outside import folded, main, table


def test_the_page_is_what_is_declared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_a_page_that_differs_is_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    assert main(["--check", str(page)]) == 1
    assert not page.exists()
    assert main([str(page)]) == 0
    whole = page.read_text()
    for row in ROWS:
        assert f"| `{row.name}` | {row.plain} |" in whole
    for condition in CONDITIONS:
        assert f"- **{condition.name}.** " in whole
    page.write_text(whole.replace("| 143 |", "| 0 |", 1))
    assert main(["--check", str(page)]) == 1
    assert "is not what tests/outside/matrix.py declares" in capsys.readouterr().out
    assert main([str(page)]) == 0
    assert page.read_text() == whole


def test_tables_and_paragraphs_are_markdown() -> None:
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"
    assert folded("- " + "word " * 30).splitlines()[1].startswith("  word")

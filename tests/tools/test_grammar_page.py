"""The page of all keys is what the grammar says, and its tool finds out when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import grammar_page


def test_the_page_is_what_the_grammar_says() -> None:
    assert grammar_page.main(["--check"]) == 0


def test_the_tool_finds_a_page_of_yesterday_and_writes_todays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(grammar_page, "PAGE", page)
    page.write_text("of yesterday\n", encoding="utf-8")
    assert grammar_page.main(["--check"]) == 1
    assert "run python tools/grammar_page.py" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "of yesterday\n"
    assert grammar_page.main([]) == 0
    assert grammar_page.main(["--check"]) == 0
    assert "| `top_p` | number above 0, to 1 | `1.0` |" in page.read_text(encoding="utf-8")

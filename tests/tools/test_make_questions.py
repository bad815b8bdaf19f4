"""The shipped questions are what their tool makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import make_questions


def test_the_file_is_what_the_tool_makes() -> None:
    assert make_questions.main(["--check"]) == 0


def test_the_tool_finds_a_file_of_yesterday_and_writes_todays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "code.jsonl"
    monkeypatch.setattr(make_questions, "FILE", file)
    file.write_text("of yesterday\n", encoding="utf-8")
    assert make_questions.main(["--check"]) == 1
    assert "run python tools/make_questions.py" in capsys.readouterr().err
    assert make_questions.main([]) == 0
    assert make_questions.main(["--check"]) == 0


def test_no_place_is_the_right_one_and_no_choice_begins_another() -> None:
    """A target that always takes the same place, or knows nothing, must be near 25 %."""
    records = [json.loads(line) for line in make_questions.written().splitlines()]
    places = [record["answer"] for record in records]
    assert all(0.18 < places.count(place) / len(places) < 0.32 for place in range(4))
    assert len({record["question"] for record in records}) == len(records)
    for record in records:
        choices = record["choices"]
        assert len(set(choices)) == 4
        assert not any(one != other and one.startswith(other) for one in choices for other in choices), record

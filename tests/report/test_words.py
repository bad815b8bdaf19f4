"""The same words for the same things."""

from __future__ import annotations

import pytest

from specdebug.report.words import journal_line, replaced, times


def test_times() -> None:
    assert [times(count) for count in (0, 1, 2)] == ["0 times", "once", "2 times"]


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ((), []),
        (("a.b",), ["1 stand-in"]),
        (("graphs: by Python", "a.b", "empty modules: c, d", "e"), ["graphs; empty modules; 2 stand-ins"]),
    ],
)
def test_what_is_not_the_engine_s_own_code_in_short(parts: tuple[str, ...], told: list[str]) -> None:
    assert replaced(parts) == [f"in place of the engine's own GPU code: {each} (see --json)" for each in told]


@pytest.mark.parametrize(
    ("reason", "resumed", "hint"),
    [
        ("answered", 3, "the same command shows this again"),
        ("answered", 10, "every trial was in it already; --fresh starts anew"),
        ("interrupted", 10, "the same command goes on from here"),
        ("trouble", 0, "the same command goes on from here"),
        ("stalled", 0, "the same command shows this again"),
        ("max-trials", 0, "the same command shows this again; with a higher --max-trials it goes on"),
        ("max-trials", 10, "every trial was in it already; --fresh starts anew; with a higher --max-trials it goes on"),
    ],
)
def test_the_journal_s_line_says_what_the_same_command_would_do(reason: str, resumed: int, hint: str) -> None:
    assert journal_line("j.sqlite", reason, resumed, 10) == f"journal: j.sqlite ({hint})"

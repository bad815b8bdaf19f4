"""A table where it fits, blocks where it does not, and nothing lost in either."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from specdebug.report.parts import Column, Styled, Table
from specdebug.report.tables import Listing, Prose, broken

COLUMNS = (
    Column("arm", key=True),
    Column("signature", key=True),
    Column("what", prose=True),
    Column("n", right=True),
)
ROWS = (("fixed", "", "nothing was found", "4"), ("reverted", "nan@draft.logits", ["one", "other"], "400"))

WORDS = st.lists(st.text("abc@.\u4e2d", min_size=1, max_size=12), max_size=12)


def lines(what: Listing | Prose, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(what, crop=False)
    return stream.getvalue().splitlines()


def test_what_has_no_room_runs_over_the_edge_in_one_piece() -> None:
    assert lines(Listing(Table(COLUMNS, ROWS[1:])), 10)[:2] == ["reverted", "nan@draft.logits"]
    assert lines(Prose(Text("see nan@draft.logits there"), hang=2), 10) == ["see", "  nan@draft.logits", "  there"]


def test_a_bar_marks_every_line_of_table_and_blocks() -> None:
    for width in (30, 80):
        title, *rest = lines(Listing(Table(COLUMNS, ROWS, "title", bar=True)), width)
        assert title == "title"
        assert all(line.startswith("│ ") for line in rest)
        assert all(len(line) <= width for line in rest)
    plain = lines(Listing(Table(COLUMNS, ROWS, "title")), 78)
    assert [line.removeprefix("│ ") for line in lines(Listing(Table(COLUMNS, ROWS, "title", bar=True)), 80)] == plain


def test_styles_stay_where_they_are() -> None:
    stream = io.StringIO()
    rows = [("arm", Styled("fail", "fail"), "4")]
    columns = (Column("arm", key=True), Column("verdict", prose=True), Column("a long head", prose=True))
    console = Console(file=stream, width=20, force_terminal=True, color_system="standard")
    console.print(Listing(Table(columns, rows, bar=True)), crop=False)
    dim, red, off = "\x1b[2m", "\x1b[1;31m", "\x1b[0m"
    assert stream.getvalue().splitlines() == [
        f"{dim}│ {off}arm",
        f"{dim}│ {off}  {dim}verdict: {off}{red}fail{off}",
        f"{dim}│ {off}  {dim}a long head: {off}4",
    ]


def test_text_is_not_taken_for_markup() -> None:
    assert lines(Listing(Table((Column("[b]x[/b]", key=True),), [("[red]y",)])), 40) == ["[b]x[/b]", "[red]y"]


@given(WORDS, st.integers(1, 40), st.integers(0, 6))
def test_breaking_keeps_every_word_whole_and_in_order(words: list[str], width: int, hang: int) -> None:
    found = broken(Text(" ".join(words)), width, hang)
    assert [word for line in found for word in line.plain.split()] == words
    for index, line in enumerate(found):
        room = width - (hang if index else 0)
        assert cell_len(line.plain) <= room or " " not in line.plain.strip(" ")


@given(st.lists(st.tuples(WORDS, WORDS), max_size=4), st.integers(1, 90))
def test_a_listing_shows_every_word_of_every_row(rows: list[tuple[list[str], list[str]]], width: int) -> None:
    cells = [(" ".join(left), " ".join(right)) for left, right in rows]
    found = lines(Listing(Table((Column("", key=True), Column("", prose=True)), cells)), width)
    shown = sorted(word for line in found for word in line.split())
    assert shown == sorted(word for left, right in rows for word in left + right)

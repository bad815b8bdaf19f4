"""A table where it fits, blocks where it does not, and nothing lost in either."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from specdebug.report.parts import Column, Table
from specdebug.report.terminal import Listing, Prose, broken

COLUMNS = (
    Column("arm", "key"),
    Column("signature", "key"),
    Column("what", "prose"),
    Column("n", "right"),
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


def test_text_is_not_taken_for_markup() -> None:
    assert lines(Listing(Table((Column("[b]x[/b]", "key"),), [("[red]y",)])), 40) == ["[b]x[/b]", "[red]y"]


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
    found = lines(Listing(Table((Column("", "key"), Column("", "prose")), cells)), width)
    shown = sorted(word for line in found for word in line.split())
    assert shown == sorted(word for left, right in rows for word in left + right)

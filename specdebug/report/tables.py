"""Rows for a terminal of any width: a table where it fits, a block for each row where it does not.

Names, signatures and commands are there to be searched for and copied: nothing is ever cut, and a line breaks between
words only. What has no room even in a block runs over the terminal's edge in one piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from specdebug.report.foreign import shown
from specdebug.report.parts import Cell, Column, Styled, Table

GAP = 2
"""Columns of the terminal between two columns of a table."""
MIN_PROSE = 32
"""Columns that prose has at least in a table; with less, rows become blocks."""
BAR = "│ "
INDENT = "  "
"""Stands before the details of a block."""

_FIXED = "\N{NO-BREAK SPACE}"
"""Stands for a space at which no line is broken; foreign text has none, because ``shown`` writes it as an escape."""
_WORD = re.compile(r"(?:^ +)?[^ ]+")

STYLES = {
    "": "",
    "pass": "green",
    "fail": "bold red",
    "unknown": "yellow",
    "dim": "dim",
    "bold": "bold",
    "injected": "magenta",
}
"""The colours of a terminal."""


class Listing:
    """A table, laid out for the width of the console that prints it."""

    def __init__(self, table: Table) -> None:
        self._columns = tuple(replace(column, name=shown(column.name)) for column in table.columns)
        self._rows = [[_lines(cell) for cell in row] for row in table.rows[: table.most]]
        self._title = shown(table.title)
        self._bar = table.bar

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield _whole(Text(self._title, "bold"))
        bar = ("| " if options.ascii_only else BAR) if self._bar else ""
        room = options.max_width - len(bar)
        widths = self._widths(room)
        for line in self._blocks(room) if widths is None else self._table(widths):
            yield _whole(Text.assemble((bar, "dim"), line))

    def _widths(self, room: int) -> list[int] | None:
        """Columns' widths in a table of at most ``room``; None where it does not fit."""
        natural, least = [], []
        for index, column in enumerate(self._columns):
            lines = [line.plain for row in self._rows for line in row[index]]
            widest = max(map(cell_len, lines), default=0)
            longest = max((cell_len(word) for line in lines for word in line.split(" ")), default=0)
            head = cell_len(column.name)
            natural.append(max(widest, head))
            least.append(max(min(widest, MIN_PROSE), longest, head) if column.prose else max(widest, head))
        left = room - sum(least) - GAP * (len(least) - 1)
        if left < 0:
            return None
        for index, wanted in enumerate(natural):
            more = min(wanted - least[index], left)
            least[index] += more
            left -= more
        return least

    def _table(self, widths: Sequence[int]) -> Iterable[Text]:
        if any(column.name for column in self._columns):
            yield self._line([Text(column.name, "bold") for column in self._columns], widths)
        for row in self._rows:
            cells = [
                [part for line in lines for part in broken(line, width)] if column.prose else lines
                for column, lines, width in zip(self._columns, row, widths, strict=True)
            ]
            for parts in zip_longest(*cells, fillvalue=Text()):
                yield self._line(parts, widths)

    def _line(self, parts: Sequence[Text], widths: Sequence[int]) -> Text:
        line = Text()
        for column, part, width in zip(self._columns, parts, widths, strict=True):
            if line:
                line.append(" " * GAP)
            space = " " * (width - part.cell_len)
            line += Text(space) + part if column.right else part + Text(space)
        line.rstrip()
        return line

    def _blocks(self, room: int) -> Iterable[Text]:
        for row in self._rows:
            named = list(zip(self._columns, row, strict=True))
            keys = [line for column, lines in named if column.key for line in lines if line]
            yield from packed(keys, room, between=" " * GAP)
            items = [_item(column, line) for column, lines in named if not column.key for line in lines if line]
            for line in packed(items, room - len(INDENT), between="; "):
                yield from (Text(INDENT) + part for part in broken(line, room - len(INDENT)))


def packed(items: Iterable[Text], room: int, between: str) -> list[Text]:
    """As few lines as hold the items in order, ``between`` joining those on one; an item too wide has its own line."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + cell_len(between) + item.cell_len <= room:
            lines[-1] = lines[-1] + Text(between) + item
        else:
            lines.append(item)
    return lines


class Prose:
    """A line that is broken between words where the console is narrower; what follows is indented by ``hang``.

    Without ``fold`` it keeps its length, as what is to be copied should.
    """

    def __init__(self, text: Text, hang: int = 4, fold: bool = True) -> None:
        self._text = text
        self._hang = hang
        self._fold = fold

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.no_wrap or not self._fold:
            yield _whole(self._text)
            return
        for place, line in enumerate(broken(self._text, options.max_width, self._hang)):
            yield _whole(Text(" " * self._hang) + line if place else line)


def line(text: object, style: str = "", fold: bool = True) -> Prose:
    """Foreign text as a line of its own."""
    return Prose(Text(shown(text), style), fold=fold)


def unbroken(text: str) -> str:
    """Text of ``shown``, so marked that no line is broken within it."""
    return text.replace(" ", _FIXED)


def broken(text: Text, width: int, hang: int = 0) -> list[Text]:
    """The text in lines of at most ``width`` columns, broken at spaces; a word that is longer stays whole.

    Lines after the first have ``hang`` columns less.
    """
    lines, start, end, plain = [], 0, 0, text.plain
    for word in _WORD.finditer(plain):
        if end and cell_len(plain[start : word.end()]) > width - (hang if start else 0):
            lines.append(text[start:end])
            start = word.start()
        end = word.end()
    return [*lines, text[start:end]]


def _lines(cell: Cell) -> list[Text]:
    return [
        Text(shown(each.words), STYLES[each.style]) if isinstance(each, Styled) else Text(shown(each))
        for each in ([cell] if isinstance(cell, (str, Styled)) else cell)
    ]


def _item(column: Column, value: Text) -> Text:
    return Text.assemble((f"{column.name}: ", "dim"), value) if column.name else value


def _whole(text: Text) -> Text:
    text.plain = text.plain.replace(_FIXED, " ")
    text.no_wrap, text.overflow = True, "ignore"
    return text

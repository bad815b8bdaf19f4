"""A report for a person at a terminal of any width, and as plain text: a table where it fits, else blocks.

Names, signatures and commands are there to be searched for and copied: nothing is ever cut, and a line breaks between
words only. What has no room even in a block runs over the terminal's edge in one piece.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import IO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from specdebug.report.parts import Cell, FactList, FindingList, Line, Part, Preformatted, Report, Section, Styled, Table
from specdebug.report.words import shown

PLAIN_WIDTH = 160
"""Columns where the output is no terminal: a table in a log should not be folded at 80."""
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


def console(stream: IO[str] | None = None) -> Console:
    """A console on ``stream`` (stdout unless given)."""
    stream = stream or sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(file=stream, width=width, highlight=False, emoji=False, soft_wrap=False)


def drawn(parts: Iterable[Part]) -> RenderableType:
    """The parts, one below the other."""
    return Group(*_drawn(parts, ""))


def text_of(parts: Iterable[Part]) -> str:
    """The parts without colours, no line folded: a line is to be found by searching for it."""
    plain = Console(highlight=False, color_system=None, width=PLAIN_WIDTH)
    with plain.capture() as captured:
        plain.print(drawn(parts), soft_wrap=True)
    return "\n".join(each.rstrip() for each in captured.get().strip("\n").split("\n"))


def report_text(report: Report) -> str:
    """The same of a whole report, its summary first."""
    return text_of([Line(report.summary), *report.rest])


def _drawn(parts: Iterable[Part], indent: str) -> Iterator[RenderableType]:
    before: Part | None = None
    for part in parts:
        match part:
            case Line(text, style, fold):
                yield line(indent + text, STYLES[style], fold)
            case FindingList(found, most):
                for place, each in enumerate(found[:most]):
                    told = Text(f"{indent}  then " if place else indent)
                    told.append(unbroken(shown(each.signature)), "red" if place else "bold red")
                    told.append("" if each.step is None else f" at step {each.step}", "dim")
                    told.append(f", {each.count} in all" if each.count > 1 else "", "dim")
                    yield Prose(told.append(f"  {shown(each.detail)}"), hang=6)
                if len(found) > most:
                    yield line(f"{indent}and {len(found) - most} more kinds (see --json)", "dim")
            case Table():
                if before is not None and not isinstance(before, Line):
                    yield Text()
                yield Listing(part)
                if part.most is not None and len(part.rows) > part.most:
                    yield line(f"{len(part.rows) - part.most} {part.more}", "dim")
            case Section(title, inner, note):
                yield from (Text(), Text.assemble((shown(indent + title), "bold"), (f"  {shown(note)}", "dim")))
                yield from _drawn(inner, indent + "  ")
            case FactList(facts):
                wide = max(map(len, facts), default=0)
                rows = (Text(shown(f"{name:<{wide}} {value}")) for name, value in facts.items())
                yield from (Prose(each, hang=wide + 1) for each in rows)
            case Preformatted(text):
                yield from (line(indent + each, fold=False) for each in text.split("\n"))
        before = part


class Listing:
    """A table, laid out for the width of the console that prints it."""

    def __init__(self, table: Table) -> None:
        self._heads = [(shown(column.name), column.kind) for column in table.columns]
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
        for index, (name, kind) in enumerate(self._heads):
            lines = [line.plain for row in self._rows for line in row[index]]
            widest = max(map(cell_len, lines), default=0)
            longest = max((cell_len(word) for line in lines for word in line.split(" ")), default=0)
            head = cell_len(name)
            natural.append(max(widest, head))
            least.append(max(min(widest, MIN_PROSE), longest, head) if kind == "prose" else max(widest, head))
        left = room - sum(least) - GAP * (len(least) - 1)
        if left < 0:
            return None
        for index, wanted in enumerate(natural):
            more = min(wanted - least[index], left)
            least[index] += more
            left -= more
        return least

    def _table(self, widths: Sequence[int]) -> Iterable[Text]:
        if any(name for name, _ in self._heads):
            yield self._line([Text(name, "bold") for name, _ in self._heads], widths)
        for row in self._rows:
            cells = [
                [part for line in lines for part in broken(line, width)] if kind == "prose" else lines
                for (_, kind), lines, width in zip(self._heads, row, widths, strict=True)
            ]
            for parts in zip_longest(*cells, fillvalue=Text()):
                yield self._line(parts, widths)

    def _line(self, parts: Sequence[Text], widths: Sequence[int]) -> Text:
        line = Text()
        for (_, kind), part, width in zip(self._heads, parts, widths, strict=True):
            line += Text(" " * GAP if line else "")
            space = Text(" " * (width - part.cell_len))
            line += space + part if kind == "right" else part + space
        line.rstrip()
        return line

    def _blocks(self, room: int) -> Iterable[Text]:
        for row in self._rows:
            named = list(zip(self._heads, row, strict=True))
            keys = [line for (_, kind), lines in named if kind == "key" for line in lines if line]
            yield from packed(keys, room, between=" " * GAP)
            items = [
                Text.assemble((f"{name}: ", "dim"), line) if name else line
                for (name, kind), lines in named
                if kind != "key"
                for line in lines
                if line
            ]
            for line in packed(items, room - len(INDENT), between="; "):
                yield from (Text(INDENT) + part for part in broken(line, room - len(INDENT)))


def _lines(cell: Cell) -> list[Text]:
    every = [cell] if isinstance(cell, (str, Styled)) else cell
    styled = (one if isinstance(one, Styled) else Styled(one) for one in every)
    return [Text(shown(one.words), STYLES[one.style]) for one in styled]


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
        self._text, self._hang, self._fold = text, hang, fold

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


def _whole(text: Text) -> Text:
    text.plain = text.plain.replace(_FIXED, " ")
    text.no_wrap, text.overflow = True, "ignore"
    return text

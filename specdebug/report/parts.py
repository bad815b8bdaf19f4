"""The result of a command as parts, which every format draws in its own way.

A command's result is made a :class:`Report` in one function. The terminal, a page, Markdown and JUnit know nothing but
these parts; a JSON document is the report's data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from specdebug.base.errors import Where

Verdict: TypeAlias = Literal["pass", "fail", "unknown"]
Style: TypeAlias = Literal["", "pass", "fail", "unknown", "dim", "bold", "injected"]
Kind: TypeAlias = Literal["", "key", "prose", "right"]


def verdict_of(exit_code: int) -> Verdict:
    """0 passes, 1 fails; any other code is no verdict."""
    return "pass" if exit_code == 0 else "fail" if exit_code == 1 else "unknown"


@dataclass(frozen=True)
class Styled:
    """Words in the colour of a verdict."""

    words: str
    style: Style = ""


Cell: TypeAlias = str | Styled | Sequence[str | Styled]
"""A cell's content: text, text with a colour, or several lines."""


@dataclass(frozen=True)
class Column:
    """A column, how it behaves where room is short, and how it is drawn of a record.

    Attributes:
        name: the head; in a block it stands before the value.
        kind: ``key``: the value stands in the first line of a block; ``prose``: it may be broken between words, any
            other stays on one line; ``right``: numbers, flush right.
        of: its cell of a record; a number is written out, None is an empty cell.
    """

    name: str
    kind: Kind = ""
    of: Callable[[Any], Cell | int | None] | None = None


def columns(*names: str, kind: Kind = "") -> list[Column]:
    """Columns of one kind."""
    return [Column(name, kind) for name in names]


@dataclass(frozen=True)
class Table:
    """Rows under heads.

    Attributes:
        most: rows that a short format shows; None: all of them.
        more: says what the others are, behind their number.
        bar: every line begins with a bar, which tells the reader of a log that signatures here are no findings.
        marked: rows, by place, in which something differs.
        lights: the first cell names a request, whose line in the plots lights up under the pointer.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    bar: bool = False
    most: int | None = None
    more: str = "more"
    marked: frozenset[int] = frozenset()
    lights: bool = False


def table(records: Iterable[Any], *heads: Column, **more: Any) -> Table:
    """A row of each record, drawn by the columns' ``of``."""
    drawn = ([one.of(record) for one in heads if one.of] for record in records)
    rows = [["" if cell is None else str(cell) if isinstance(cell, int) else cell for cell in row] for row in drawn]
    return Table(heads, rows, **more)


@dataclass(frozen=True)
class Line:
    """A line of text. Without ``fold`` it keeps its length, as what is to be copied should. ``links``: words of it
    with an address on the web, or ``#`` and the anchor of a section; pages alone have them."""

    text: str
    style: Style = ""
    fold: bool = True
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ToldFinding:
    """A failure that was found: its signature, the first step, how often, and what was seen."""

    signature: str
    step: int | None
    count: int
    detail: str


@dataclass(frozen=True)
class FindingList:
    """Failures, first things first. ``most``: those that a short format names."""

    found: Sequence[ToldFinding]
    most: int


@dataclass(frozen=True)
class FactList:
    """Names and values."""

    facts: dict[str, str]


@dataclass(frozen=True)
class Preformatted:
    """Text whose lines stay as they are: a log, a diff, a command. ``name`` says what it is to a screen reader."""

    text: str
    name: str


@dataclass(frozen=True)
class Plot:
    """A drawing (SVG), which a page alone shows. ``keys``: words of its legend, each with its class of style."""

    drawing: str
    caption: str
    keys: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Section:
    """Parts under a title, a ``note`` and verdicts (``chips``) behind it. Of a ``folded`` one a page shows the title
    until it is asked for the rest. ``anchor``: links lead to it by this name."""

    title: str
    parts: Sequence[Part]
    note: str = ""
    chips: Sequence[Styled] = ()
    folded: bool = False
    anchor: str = ""


Part: TypeAlias = Table | Line | FindingList | FactList | Preformatted | Plot | Section


@dataclass(frozen=True)
class CaseResult:
    """A test case: passed, failed, or (unknown) skipped. ``out`` and ``log`` are told of it in any case."""

    name: str
    verdict: Verdict
    message: str
    detail: str
    seconds: float
    out: str = ""
    log: str = ""


@dataclass(frozen=True)
class Notice:
    """A message for who reads the repository, at a line of a file."""

    verdict: Verdict
    title: str
    message: str
    where: Where


@dataclass(frozen=True)
class Report:
    """The result of a command.

    Attributes:
        command: the command that made it, without its options.
        title: what it is about.
        summary: the result in one line.
        document: the same as plain data, for JSON.
        parts: what every format tells, in order; a line that is ``summary`` stands where a terminal has it.
        chips: the verdicts in a few words.
        facts: what stands at the head of a page.
        page: makes the parts of a page, if those are others: plots, and tables of every trial.
        cases: test cases; without any, the report is one.
        notices: messages at lines of files.
        inner: reports of which this one is made.
        trace: makes the steps as a trace in the Trace Event format; None where none are recorded.
        line: the command line that was run.
    """

    command: str
    title: str
    summary: str
    exit_code: int
    document: Any
    parts: Sequence[Part]
    chips: Sequence[Styled] = ()
    facts: dict[str, str] = field(default_factory=dict)
    page: Callable[[], Sequence[Part]] = tuple
    cases: Sequence[CaseResult] = ()
    notices: Sequence[Notice] = ()
    inner: Sequence[Report] = ()
    trace: Callable[[], dict[str, Any]] | None = None
    seconds: float = 0.0
    line: str = ""

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.exit_code)

    @property
    def every(self) -> Sequence[Report]:
        """The reports of which this one is made, or this one."""
        return self.inner or (self,)

    @property
    def rest(self) -> list[Part]:
        """The parts for a format that has the summary in a place of its own."""
        return [part for part in self.parts if not (isinstance(part, Line) and part.text == self.summary)]


def lines(texts: Iterable[str], style: Style = "", *, fold: bool = True) -> Iterator[Line]:
    """A line of each text."""
    return (Line(text, style, fold) for text in texts)


def plain(record: Any, names: str) -> dict[str, Any]:
    """Attributes of a record by their names, tuples as lists: a part of a JSON document."""
    values = ((name, getattr(record, name)) for name in names.split())
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values}

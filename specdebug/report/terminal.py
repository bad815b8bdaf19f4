"""A report for a person at a terminal, and as plain text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from specdebug.report.foreign import shown
from specdebug.report.parts import (
    FactList,
    FindingList,
    Line,
    Part,
    Preformatted,
    Report,
    Section,
    Table,
    ToldFinding,
)
from specdebug.report.tables import STYLES, Listing, Prose, line, unbroken

PLAIN_WIDTH = 160
"""Columns where the output is no terminal: a table in a log should not be folded at 80."""


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
                yield from (_finding(each, indent, first=place == 0) for place, each in enumerate(found[:most]))
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
                yield from (
                    Prose(Text(shown(f"{name:<{wide}} {value}")), hang=wide + 1) for name, value in facts.items()
                )
            case Preformatted(text):
                yield from (line(indent + each, fold=False) for each in text.split("\n"))
        before = part


def _finding(found: ToldFinding, indent: str, *, first: bool) -> RenderableType:
    told = Text(indent if first else f"{indent}  then ")
    told.append(unbroken(shown(found.signature)), "bold red" if first else "red")
    if found.step is not None:
        told.append(f" at step {found.step}", "dim")
    if found.count > 1:
        told.append(f", {found.count} in all", "dim")
    told.append(f"  {shown(found.detail)}")
    return Prose(told, hang=6)

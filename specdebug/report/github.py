"""A report where GitHub Actions shows it: a step summary in Markdown, and annotations at lines of the repository.

Formats: "Workflow commands for GitHub Actions", GitHub Docs.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from specdebug.report.foreign import shown, shown_lines
from specdebug.report.parts import (
    Cell,
    FactList,
    FindingList,
    Line,
    Notice,
    Part,
    Preformatted,
    Report,
    Section,
    Styled,
    Table,
)

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
ACTIONS_VARIABLE = "GITHUB_ACTIONS"

MAX_FINDINGS = 20
"""Rows of findings an arm; the step summary is a summary."""

MAX_ROWS = 100
"""Rows of a table."""

MAX_MESSAGE = 2000
"""Characters of an annotation's message."""

SIGNS = {"pass": "✅", "fail": "❌", "unknown": "❔"}
_SPECIAL = re.compile(r"[\\`*_\[\]#|~$@]")


def summary(report: Report) -> str:
    """The report as Markdown."""
    return "\n".join("\n".join(_summary(each)) + "\n" for each in report.every)


def commands(report: Report, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The lines that a workflow prints: an error, or a warning where there is no verdict, at its line of a file."""
    return [_annotation(notice, environment) for each in report.every for notice in each.notices]


def markdown(parts: Iterable[Part]) -> Iterator[str]:
    """Lines of Markdown."""
    for part in parts:
        match part:
            case Line(text):
                yield f"- {plain(text)}" if text else ""
            case Table(heads, rows, title):
                yield from ([f"**{plain(title)}**", ""] if title else [""])
                yield from _table([head.name for head in heads], rows, part.most or MAX_ROWS)
            case FindingList(found):
                cells = [(each.signature, "" if each.step is None else str(each.step), each.detail) for each in found]
                yield from ("", *_table(("signature", "step", "what"), cells, MAX_FINDINGS))
            case Section(title, inner, note):
                said = f"{title} ({note})" if note else title
                yield from (
                    "",
                    f"<details><summary>{plain(said)}</summary>",
                    "",
                    *markdown(inner),
                    "",
                    "</details>",
                    "",
                )
            case FactList(facts):
                yield from (f"- {plain(name)}: {plain(value)}" for name, value in facts.items())
            case Preformatted(text):
                fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
                yield from ("", fence, *shown_lines(text).splitlines(), fence, "")


def plain(text: str) -> str:
    """Text that is shown as it is, on one line: nothing in it is markup."""
    escaped = html.escape(shown(" ".join(text.split())), quote=False)
    return _SPECIAL.sub(lambda special: f"&#{ord(special[0])};", escaped)


def _summary(report: Report) -> Iterator[str]:
    sign = SIGNS["fail" if report.exit_code == 2 else report.verdict]
    yield from (f"### {sign} specdebug {plain(report.command)}: {plain(report.title)}", "", plain(report.summary), "")
    yield from markdown(report.rest)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], most: int) -> Iterator[str]:
    yield f"| {' | '.join(map(plain, heads))} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    for row in rows[:most]:
        yield f"| {' | '.join(map(_cell, row))} |"
    yield from ("", f"and {len(rows) - most} more", "") if len(rows) > most else ("",)


def _cell(cell: Cell) -> str:
    if isinstance(cell, Styled):
        sign = SIGNS.get(cell.style, "")
        return f"{sign} {plain(cell.words)}".strip()
    return plain(cell) if isinstance(cell, str) else "<br>".join(map(_cell, cell))


def _annotation(notice: Notice, environment: Mapping[str, str]) -> str:
    path = Path(notice.where.path).absolute()
    workspace = Path(environment.get("GITHUB_WORKSPACE") or ".").absolute()
    named = str(path.relative_to(workspace) if path.is_relative_to(workspace) else path)
    properties = {"file": named, "line": str(notice.where.line or 1), "title": notice.title}
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    level = "warning" if notice.verdict == "unknown" else "error"
    return f"::{level} {listed}::{_data(shown_lines(notice.message[:MAX_MESSAGE]))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

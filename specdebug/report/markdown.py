"""A report in Markdown: the summary of a GitHub step, with annotations at lines of the repository, and an issue.

Formats: "Workflow commands for GitHub Actions", GitHub Docs. Unlike the summary an issue goes to strangers: it names
versions and the command line, and no path of this machine.
"""

import html
import os
import platform
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from specdebug import __version__
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
from specdebug.report.words import shown, shown_lines, without_local_paths

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
_IN_TEXT, _IN_NAMES = "%\r\n", "%\r\n:,"


def summary(report: Report) -> str:
    """The report as Markdown."""
    told: list[str] = []
    for each in report.every:
        sign = SIGNS["fail" if each.exit_code == 2 else each.verdict]
        told += [f"### {sign} specdebug {plain(each.command)}: {plain(each.title)}", "", plain(each.summary), ""]
        told += [*markdown(each.rest), ""]
    return "\n".join(told)


def issue(report: Report) -> str:
    """The whole report, to be pasted into an issue. Everything that comes from outside is escaped."""
    told = [f"## specdebug {report.command}: {plain(report.title)}", ""]
    told += [f"{SIGNS[report.verdict]} **{plain(report.summary)}**", ""]
    if report.line:
        words = [without_local_paths(word) for word in shlex.split(report.line)]
        told += markdown([Preformatted(shlex.join(words), "command")])
    facts = {**report.facts, "versions": f"specdebug {__version__}, Python {platform.python_version()}"}
    told += ["| | |", "|---|---|", *(f"| {plain(name)} | {plain(one)} |" for name, one in facts.items() if one), ""]
    for each in report.inner:
        told += [f"### {plain(each.title)}", "", f"{SIGNS[each.verdict]} {plain(each.summary)}", ""]
        told += markdown(each.rest)
    told += markdown([] if report.inner else report.rest)
    return without_local_paths("\n".join(told) + "\n")


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
                yield from ("", f"<details><summary>{plain(said)}</summary>", "")
                yield from (*markdown(inner), "", "</details>", "")
            case FactList(facts):
                yield from (f"- {plain(name)}: {plain(value)}" for name, value in facts.items())
            case Preformatted(text):
                fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
                yield from ("", fence, *shown_lines(text).splitlines(), fence, "")


def plain(text: str) -> str:
    """Text that is shown as it is, on one line: nothing in it is markup."""
    escaped = html.escape(shown(" ".join(text.split())), quote=False)
    return _SPECIAL.sub(lambda special: f"&#{ord(special[0])};", escaped)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], most: int) -> Iterator[str]:
    yield f"| {' | '.join(map(plain, heads))} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    for row in rows[:most]:
        yield f"| {' | '.join(map(_cell, row))} |"
    yield from ("", f"and {len(rows) - most} more", "") if len(rows) > most else ("",)


def _cell(cell: Cell) -> str:
    if isinstance(cell, Styled):
        return f"{SIGNS.get(cell.style, '')} {plain(cell.words)}".strip()
    return plain(cell) if isinstance(cell, str) else "<br>".join(map(_cell, cell))


def _annotation(notice: Notice, environment: Mapping[str, str]) -> str:
    path = Path(notice.where.path).absolute()
    workspace = Path(environment.get("GITHUB_WORKSPACE") or ".").absolute()
    named = str(path.relative_to(workspace) if path.is_relative_to(workspace) else path)
    properties = {"file": named, "line": str(notice.where.line or 1), "title": notice.title}
    listed = ",".join(f"{name}={_escaped(value, _IN_NAMES)}" for name, value in properties.items())
    level = "warning" if notice.verdict == "unknown" else "error"
    return f"::{level} {listed}::{_escaped(shown_lines(notice.message[:MAX_MESSAGE]), _IN_TEXT)}"


def _escaped(text: str, special: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in special else char for char in text)

"""The check of one release for a person: a table, each stale edit beside the lines nearest to it, a closing line."""

from __future__ import annotations

from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from specdebug.patching.drift import EditProblem, FixRow, Report
from specdebug.patching.drift.check import UNDECIDED
from specdebug.report.tables import Column, Listing, columns, line

_STYLES = {"fits": "green", "stale": "bold red", "not-for-version": "dim"}
_OWNERS = {"ours": "ours", "upstream": "its own"}


def render_drift(report: Report) -> RenderableType:
    """One row a fix, every stale edit with the lines nearest to it, one closing line."""
    rows = []
    for row in report.rows:
        where = [str(place) for place in row.places] if row.status == "fits" else row.why or _count(row)
        rows.append((str(row.pr), _OWNERS[row.registry], Text(row.status, _STYLES[row.status]), where))
    heads = (*columns("PR", "registry", "status", key=True), Column("where", prose=True))
    evidence = (part for row in report.rows for problem in row.problems for part in _evidence(problem))
    return Group(Listing(heads, rows), *evidence, line(_closing_line(report)))


def _count(row: FixRow) -> str:
    return f"{len(row.problems)} of {len(row.problems) + len(row.places)} edits do not fit"


def _evidence(problem: EditProblem) -> list[RenderableType]:
    lines: list[RenderableType] = [line(f"{problem.written}: {problem.what}", "red")]
    if problem.near is not None:
        lines.append(line(f"  nearest is {problem.near.where}"))
        lines += [line(f"    {each}", "red" if each.startswith("-") else "green") for each in problem.near.diff]
    return lines


def _closing_line(report: Report) -> str:
    def count(registry: Literal["ours", "upstream"]) -> str:
        return f"{report.count(registry, 'fits')} fit, {report.count(registry, 'stale')} stale"

    has_own = any(row.registry == "upstream" for row in report.rows)
    own = f"its own {count('upstream')}" if has_own else "it has no reverts of its own"
    others = f"{report.count('ours', 'not-for-version')} not for this version"
    undecided = "; no patch of ours is for this release" if report.exit_code == UNDECIDED else ""
    return f"{report.dist}: ours {count('ours')}, {others}; {own}{undecided}"

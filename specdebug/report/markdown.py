"""A report in Markdown, to be pasted into an issue: how to see it again, on what, and what was found.

Unlike the summary of a GitHub step it goes to strangers: it names versions and the command line, and no path of this
machine.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator

from specdebug import __version__
from specdebug.report.github import SIGNS, markdown, plain
from specdebug.report.local_paths import without_local_paths
from specdebug.report.parts import Preformatted, Report


def issue(report: Report) -> str:
    """The whole report. Everything that comes from outside is escaped."""
    return without_local_paths("\n".join(_issue(report)) + "\n")


def _issue(report: Report) -> Iterator[str]:
    yield from (f"## specdebug {report.command}: {plain(report.title)}", "")
    yield from (f"{SIGNS[report.verdict]} **{plain(report.summary)}**", "")
    if report.line:
        words = [without_local_paths(word) for word in shlex.split(report.line)]
        yield from markdown([Preformatted(shlex.join(words), "command")])
    facts = {**report.facts, "versions": f"specdebug {__version__}, Python {platform.python_version()}"}
    yield from (
        "| | |",
        "|---|---|",
        *(f"| {plain(name)} | {plain(told)} |" for name, told in facts.items() if told),
        "",
    )
    for each in report.inner:
        yield from (f"### {plain(each.title)}", "", f"{SIGNS[each.verdict]} {plain(each.summary)}", "")
        yield from markdown(each.rest)
    yield from markdown([] if report.inner else report.rest)

"""The formats in which a result is written to a file.

A package of its own brings one through an entry point of the group ``specdebug.reports``. The entry point has the
format's name, leads to a :class:`ReportFormat`, and then ``--report NAME=FILE`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdebug.base.errors import SpecDebugError, did_you_mean, one_line
from specdebug.base.plugins import PluginError, PluginRegistry
from specdebug.report.parts import Report


@dataclass(frozen=True)
class ReportFormat:
    """One format. ``render`` makes the file's text and escapes whatever comes from outside.

    ``shows_steps``: the steps are recorded for it.
    """

    render: Callable[[Report], str]
    shows_steps: bool = False


def to_json(document: Any) -> str:
    """Strict JSON (no NaN), readable, ending without a newline."""
    return json.dumps(document, indent=2, allow_nan=False)


def _html(report: Report) -> str:
    from specdebug.report.html.page import page

    return page(report)


def _junit(report: Report) -> str:
    from specdebug.report.junit import junit_xml

    return junit_xml(report)


def _md(report: Report) -> str:
    from specdebug.report.markdown import issue

    return issue(report)


def _perfetto(report: Report) -> str:
    if report.trace is None:
        raise SpecDebugError(f"{report.command} records no steps for a trace")
    return json.dumps(report.trace(), allow_nan=False)


OURS = {
    "html": ReportFormat(_html, shows_steps=True),
    "junit": ReportFormat(_junit),
    "md": ReportFormat(_md),
    "perfetto": ReportFormat(_perfetto, shows_steps=True),
}

FORMATS: PluginRegistry[ReportFormat] = PluginRegistry(
    "reports", "a ReportFormat", lambda part: isinstance(part, ReportFormat), OURS
)


def parse_report(text: str) -> tuple[str, Path]:
    """The format and the file of ``FORMAT=FILE``. Raises SpecDebugError, PluginError as :func:`report_format` does."""
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise SpecDebugError(f"--report takes FORMAT=FILE, such as html=report.html; got {text!r}")
    report_format(name)
    return name, Path(file)


def report_format(name: str) -> ReportFormat:
    """A format by name. Raises SpecDebugError for one that there is not, PluginError for one that cannot be used."""
    try:
        return FORMATS[name]
    except KeyError:
        raise SpecDebugError(f"no report format '{name}'{did_you_mean(name, FORMATS)}") from None


def render(name: str, report: Report) -> str:
    """The text of a file in this format. Raises PluginError where another package's format fails."""
    try:
        return report_format(name).render(report)
    except Exception as error:
        if name in OURS or isinstance(error, SpecDebugError):
            raise
        what = f"{type(error).__name__}: {one_line(str(error))}"
        raise PluginError(f"the report format '{name}' of an installed package failed: {what}") from error

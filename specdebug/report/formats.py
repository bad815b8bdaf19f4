"""The formats in which a result is written to a file, and JUnit XML, the smallest of them.

A package of its own brings one through an entry point of the group ``specdebug.reports``. The entry point has the
format's name, leads to a :class:`ReportFormat`, and then ``--report NAME=FILE`` writes it.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from specdebug.base.errors import SpecDebugError, did_you_mean, one_line
from specdebug.base.plugins import PluginError, PluginRegistry
from specdebug.report.parts import CaseResult, Report
from specdebug.report.terminal import report_text

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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


def junit_xml(report: Report) -> str:
    """The XML document, in the dialect CI systems read: one suite a scenario, one case an arm.

    A case fails when its arm did not do what was expected of it (or, where nothing was expected, failed); it is
    skipped when the arm came to no verdict. A report without cases is one.
    """
    root = ET.Element("testsuites", name="specdebug")
    for each in report.every:
        name = each.title if each.cases else each.command
        suite = ET.SubElement(root, "testsuite", name=_clean(name))
        text = "" if each.cases else report_text(each)
        whole = CaseResult(each.title, each.verdict, each.summary, text, each.seconds, out=text)
        suite.extend(_case(name, case) for case in each.cases or [whole])
        _count(suite)
        suite.set("time", f"{each.seconds:.3f}")
    _count(root)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: str, case: CaseResult) -> ET.Element:
    names = {"classname": _clean(f"specdebug.{suite}"), "name": _clean(case.name)}
    element = ET.Element("testcase", names, time=f"{case.seconds:.3f}")
    if case.verdict == "fail":
        kind = _clean(case.message)
        ET.SubElement(element, "failure", message=kind, type=kind).text = _clean(case.detail)
    elif case.verdict == "unknown":
        ET.SubElement(element, "skipped", message=_clean(case.message)).text = _clean(case.detail)
    for name, text in (("system-out", case.out), ("system-err", case.log)):
        if text:
            ET.SubElement(element, name).text = _clean(text)
    return element


def _count(element: ET.Element) -> None:
    """Set the numbers of cases below an element."""
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped"), ("errors", "error")):
        element.set(name, str(sum(1 for _ in element.iter(tag))))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _html(report: Report) -> str:
    from specdebug.report.html.page import page

    return page(report)


def _md(report: Report) -> str:
    from specdebug.report.markdown import issue

    return issue(report)


def _perfetto(report: Report) -> str:
    if report.trace is None:
        raise SpecDebugError(f"{report.command} records no steps for a trace")
    return json.dumps(report.trace(), allow_nan=False)


OURS = {
    "html": ReportFormat(_html, shows_steps=True),
    "junit": ReportFormat(junit_xml),
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

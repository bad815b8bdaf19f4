"""A report as JUnit XML, the dialect CI systems read: one suite a scenario, one case an arm.

A case fails when its arm did not do what was expected of it (or, where nothing was expected, failed); it is
skipped when the arm came to no verdict. A comparison, or a measured failure rate, is one case.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from specdebug.report.parts import CaseResult, Report
from specdebug.report.terminal import report_text

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COUNTS = {"tests": "testcase", "failures": "failure", "skipped": "skipped", "errors": "error"}


def junit_xml(report: Report) -> str:
    """The XML document."""
    root = ET.Element("testsuites", name="specdebug")
    root.extend(_suite(each) for each in report.every)
    _count(root)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(report: Report) -> ET.Element:
    name = report.title if report.cases else report.command
    suite = ET.Element("testsuite", name=_clean(name))
    suite.extend(_case(name, case) for case in report.cases or [_whole(report)])
    _count(suite)
    suite.set("time", f"{report.seconds:.3f}")
    return suite


def _whole(report: Report) -> CaseResult:
    """The report as one case."""
    text = report_text(report)
    return CaseResult(report.title, report.verdict, report.summary, text, report.seconds, out=text)


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
    for name, tag in _COUNTS.items():
        element.set(name, str(sum(1 for _ in element.iter(tag))))


def _clean(text: str) -> str:
    """Replace the characters that XML 1.0 cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)

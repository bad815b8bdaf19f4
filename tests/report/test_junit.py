"""JUnit XML of what is one verdict: a comparison, a failure rate."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from specdebug.report.junit import verdict_xml


@pytest.mark.parametrize(("code", "mark"), [(0, None), (1, "failure"), (125, "skipped"), (130, "skipped")])
def test_one_case_with_its_mark(code: int, mark: str | None) -> None:
    root = ET.fromstring(verdict_xml("flake", "./x: rate<5%", code, "the verdict\nmore \x00", 1.5))
    (suite,) = root
    (case,) = suite
    assert (case.get("classname"), case.get("name"), case.get("time")) == ("specdebug.flake", "./x: rate<5%", "1.500")
    marks = [child for child in case if child.tag != "system-out"]
    assert [child.tag for child in marks] == ([mark] if mark else [])
    if mark:
        assert marks[0].get("message") == "the verdict"
    assert (root.get("failures"), root.get("skipped")) == (str(int(mark == "failure")), str(int(mark == "skipped")))
    assert suite.get("tests") == "1"
    assert "more �" in (case.findtext("system-out") or "")

"""The head of a page: what failed, its fixes, its links and the commands to run next."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specdebug.report.bisect import bisect_report
from specdebug.report.compare import compare_report
from specdebug.report.failed import MAX_FAILED, Failed, head
from specdebug.report.flake import flake_report
from specdebug.report.html.page import page
from specdebug.report.minimise import Minimisation, minimise_report
from specdebug.report.parts import Line, Preformatted, Report, Section
from specdebug.search.minimise import Summary
from tests.report.gallery import toggle
from tests.report.samples import Page, chooser, compared, sampled, searched

FIX = replace(toggle(lambda word: word), pr=200, url="https://example.org/200")


def _flake(folder: Path) -> Report:
    found, question, journal = sampled(folder)
    with journal:
        return flake_report(found, replace(question, toggles=[FIX]), ["200"], journal.trials, journal.evidence, "nan@*")


def _bisect(folder: Path) -> Report:
    findings, subject, journal = searched(folder)
    with journal:
        subject = replace(subject, toggles=[FIX])
        return bisect_report(findings, subject, 0, journal.trials, journal.evidence, chooser, None)


def _minimise(_: Path) -> Report:
    small: Summary[Any] = Summary("done", None, "nan@<x>", (), (5, 9), (4, 4), (1, 2), (), 22, 0)
    return minimise_report(small, Minimisation("s.yaml", 4, "small.yaml", "j", 0.95, [FIX]), 0)


@pytest.mark.parametrize("made", [_flake, _bisect, _minimise])
def test_a_page_begins_with_the_failure_its_fix_and_what_to_run(tmp_path: Path, made: Any) -> None:
    report = made(tmp_path)
    first = report.page()[0]
    assert isinstance(first, Section)
    assert first.title == "What failed"
    (story, *_) = first.parts
    lines = [one for one in story.parts if isinstance(one, Line)]
    blocks = [one.text for one in story.parts if isinstance(one, Preformatted)]
    assert lines[0].text == "nan@<x>"
    assert lines[1].links == {"fix 200": "https://example.org/200"}
    assert blocks[0] == "- before line\n+ after line"
    assert blocks[1].startswith("specdebug toggles show 200\n")
    shown = page(report)
    Page(shown)  # its links lead somewhere
    assert "<a href='https://example.org/200'>fix 200</a>" in shown


def test_a_comparison_begins_with_the_arms_that_failed() -> None:
    first = compare_report(*compared()).page()[0]
    assert isinstance(first, Section)
    assert [one.title for one in first.parts if isinstance(one, Section)] == ["reverted"]


def test_a_fix_is_listed_once_and_further_failures_are_counted() -> None:
    failures = [Failed(f"arm {n}", "nan@x", "here", [FIX], ["run"]) for n in range(MAX_FAILED + 2)]
    (section,) = head(failures)
    stories = [one for one in section.parts if isinstance(one, Section)]
    assert [sum(isinstance(each, Preformatted) for each in one.parts) for one in stories] == [2, 1, 1, 1]
    assert section.parts[-1] == Line("and 2 more, below")
    assert head([]) == []


@pytest.mark.parametrize("address", ["javascript:alert(1)", "data:text/html,x", "", "//evil.example"])
def test_an_address_of_another_scheme_is_no_link(address: str) -> None:
    shown = page(Report("x", "x", "x", 0, {}, [Line("see <b> & fix 1", links={"fix 1": address})]))
    assert "see &lt;b&gt; &amp; fix 1" in shown
    assert shown.count("<a ") == 1  # that which skips to the results

"""The wording of every command, a text for each: what ``tests/golden/`` holds, and ``tools/golden.py`` writes.

Of the report in ``gallery.py`` a text has every format, of the other endings what a terminal shows. A reader of a diff
of these files sees what a change does to each of them.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from specdebug import __version__
from specdebug.report.formats import junit_xml, to_json
from specdebug.report.html.page import page
from specdebug.report.markdown import commands, issue, summary
from specdebug.report.parts import Report
from specdebug.report.terminal import text_of
from tests.report.endings import endings
from tests.report.gallery import report_of_all
from tests.report.samples import Page

FOLDER = Path(__file__).parents[1] / "golden"


def golden_texts() -> dict[str, str]:
    """By the file's name, its text."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        reports = report_of_all(lambda word: word, Path(one))
        others = endings(Path(other))
    names = sorted({*reports, *others})
    return {
        f"{name.replace(' ', '-')}.txt": "\n".join([*_whole(reports.get(name)), *map(_ending, others.get(name, ()))])
        for name in names
    }


def _whole(report: Report | None) -> Iterator[str]:
    if report is None:
        return
    yield _titled("terminal", text_of(report.parts))
    yield _titled("Markdown", summary(report))
    yield _titled("an issue", re.sub(r", Python \S+", "", issue(report)))
    yield from [_titled("annotations", "\n".join(commands(report, {})))] if report.notices else []
    yield _titled("JUnit", junit_xml(report))
    yield _titled("page", _words(Page(page(report))))
    yield _titled("JSON", to_json(report.document))


def _ending(report: Report) -> str:
    chips = ", ".join(f"{chip.words} ({chip.style})" for chip in report.chips)
    page_text = _words(Page(page(report))) if report.trace is not None else ""
    return _titled("another ending", text_of(report.parts)) + _titled("its head", chips) + page_text


def _titled(title: str, text: str) -> str:
    return f"== {title}\n{text.replace(__version__, 'VERSION').rstrip()}\n"


def _words(page: Page) -> str:
    """The words of a page, folded between words, without the versions of this machine."""
    text = re.sub(r"versions specdebug \S+ Python \S+", "versions", page.text)
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + len(word) > 118:
            lines, line = [*lines, line], word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line, ""])

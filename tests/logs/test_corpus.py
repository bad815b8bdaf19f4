"""Error lines of public reports are named as a person names them, but for the misses that are listed."""

import pytest

from benchmarks.triage_corpus import CORPUS, HALVES, Report, reports
from specdebug.scenario.library import Library

MISSES = {
    line.split()[0]
    for line in (CORPUS / "known-misses.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[Report]]:
    library = Library()
    return {half: list(reports(half, library)) for half in HALVES}


def test_every_report_is_named_rightly_or_a_known_miss(found: dict[str, list[Report]]) -> None:
    wrong = {f"{half}/{one.name}" for half in HALVES for one in found[half] if not one.right}
    assert wrong == MISSES

"""Error lines of public reports are named as a person names them, but for the misses that are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.triage_corpus import CORPUS, HALVES, Report, reports, row
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


def test_no_fix_is_ranked_where_naming_one_would_be_a_guess(found: dict[str, list[Report]]) -> None:
    assert [one.name for half in HALVES for one in found[half] if one.ranked and not one.may_rank] == []


def test_some_fix_is_ranked_where_damage_speaks_of_one_and_the_engine_is_known(found: dict[str, list[Report]]) -> None:
    assert sum(bool(one.ranked) for half in HALVES for one in found[half]) >= 6


def test_the_halves_are_what_the_readme_says(found: dict[str, list[Report]]) -> None:
    for half in HALVES:
        assert len(found[half]) >= 35
        for file in (CORPUS / half).glob("*.txt"):
            source, expect, fixes = file.read_text("utf-8").splitlines()[:3]
            number = int(source.rpartition(" ")[2])
            assert file.stem.endswith(f"-{number}")
            assert (number % 2 == 1) == (half == "held-out")
            assert source.startswith("# ")
            assert expect.startswith("# expect: ")
            assert fixes in ("# fixes: may", "# fixes: none")
    assert row("held-out", found["held-out"]).startswith("| held-out | 38 | ")


def test_the_headers_are_not_read(found: dict[str, list[Report]]) -> None:
    assert Path(CORPUS / "README.md").is_file()
    assert any(one.named is None for half in HALVES for one in found[half])

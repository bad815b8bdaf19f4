"""Words of a search for the first bad commit or release."""

from dataclasses import replace
from pathlib import Path

import pytest

from specdebug.base.trial import Trial
from specdebug.report.bisect import verdict_line
from tests.report.samples import NAMES, searched


@pytest.mark.parametrize(
    ("over", "named", "good"),
    [
        ("commits", 'first bad commit 200 "fix <200>" with probability', "at the good commit"),
        ("releases", "first bad release 200 with probability", "at the good release"),
        ("toggles", 'culprit 200 "fix <200>" with probability', f"0 of {len(NAMES)} reverted"),
    ],
)
def test_the_first_bad_one_is_named_by_what_it_is(over: str, named: str, good: str, tmp_path: Path) -> None:
    findings, subject, journal = searched(tmp_path)
    journal.__exit__(None, None, None)
    subject = replace(subject, over=over)
    assert verdict_line(findings, subject).startswith(named)
    assert subject.switched(Trial(0, frozenset(), 1)) == good
    one = "200 reverted" if over == "toggles" else "at 200"
    assert subject.switched(Trial(0, frozenset({"200"}), 1)) == one

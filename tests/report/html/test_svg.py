from __future__ import annotations

import itertools
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.report.html.svg import drawing, text, ticks

FINITE = st.floats(-1e9, 1e9, allow_nan=False)


@given(low=FINITE, span=st.floats(1e-6, 1e9), about=st.integers(2, 12))
def test_ticks_are_inside_evenly_spaced_and_about_as_many_as_asked(low: float, span: float, about: int) -> None:
    high = low + span
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return  # nothing lies between them that a float can tell apart
    found = ticks(low, high, about)
    slack = 1e-6 * span
    assert all(low - slack <= value <= high + slack for value in found)
    assert 2 <= len(found) <= max(about + 1, 5)
    apart = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert all(gap == pytest.approx(apart[0], rel=1e-3, abs=1e-6) for gap in apart)


def test_ticks_are_round() -> None:
    assert ticks(0, 5.5, 5) == [0, 2, 4]
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(3, 3) == [3]


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])))
def test_whatever_is_written_is_text(words: str) -> None:
    drawn = drawing(10, words, text(1, 2, words, data_tip=words))
    root = ET.fromstring(drawn)
    assert root.get("aria-label") == words
    assert root.get("role") == "img"
    (label,) = root
    assert (label.text or "", label.get("data-tip")) == (words, words)

"""A limit that is met exactly is met, whatever the last bits say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.search.claims import CleanRuns, RatioTest
from specdebug.search.intervals import SLACK, reached


@given(st.floats(0.0, 20.0), st.integers(-100, 100))
def test_last_bits_do_not_decide(limit: float, bits: int) -> None:
    assert reached(limit + bits * math.ulp(limit), limit)
    assert not reached(limit - 1.01 * SLACK - 1e-12, limit)


@pytest.mark.parametrize("bits", [-20, 0, 20])
def test_a_ratio_at_its_limit_ends_the_test(bits: int) -> None:
    """One failure is exactly as much as the limit asks for."""
    test = RatioTest(0.01, 0.2, up=math.log(20), down=math.log(20))
    assert reached(test.ratio(1, 1) + bits * math.ulp(3.0), test.up)


@given(st.integers(1, 30))
def test_an_error_that_is_just_spent_is_spent(runs: int) -> None:
    """With rate 1/2 and an error that ``runs`` runs without a failure have exactly, no more are needed."""
    error = 0.5**runs / (1 - 1 / 128)
    for nearly in (math.nextafter(error, 0), error, math.nextafter(error, 1)):
        assert CleanRuns(0.5, nearly).needed(0) == runs

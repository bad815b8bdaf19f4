"""Reproducible arithmetic: it is right, its sums depend on no order, and ties are ties."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.base.reproducible import (
    GRID,
    LEVEL,
    exp,
    level,
    levels,
    log,
    log2,
    logaddexp,
    on_grid,
)

UNIT = st.floats(0.0, 1.0)
LISTS = st.lists(UNIT, max_size=70)


@given(st.floats(1e-300, 1e300))
def test_logarithms(x: float) -> None:
    with localcontext(prec=40):
        exact = Decimal(x).ln()
    assert float(log(x)) == pytest.approx(float(exact), rel=1e-13, abs=1e-300)
    assert float(log2(x)) * math.log(2) == pytest.approx(float(exact), rel=1e-13, abs=1e-300)


@given(st.floats(-700, 700))
def test_exponentials(x: float) -> None:
    with localcontext(prec=40):
        exact = Decimal(x).exp()
    assert float(exp(x)) == pytest.approx(float(exact), rel=1e-14)


@given(st.floats(-50, 50), st.floats(-50, 50))
def test_sums_of_exponentials(a: float, b: float) -> None:
    assert float(logaddexp(a, b)) == pytest.approx(float(np.logaddexp(a, b)), rel=1e-12, abs=1e-12)


@given(st.permutations(np.linspace(0, 1, 40).tolist()), st.floats(0, 1))
def test_sums_on_the_grid_are_exact_in_any_order(values: list[float], factor: float) -> None:
    grid = on_grid(np.array(values) * factor)
    exact = sum(map(Fraction, grid.tolist()), Fraction())
    assert Fraction(float(grid.sum())) == Fraction(sum(grid.tolist())) == Fraction(float(grid @ np.ones(40))) == exact
    assert np.abs(grid - np.array(values) * factor).max() <= GRID / 2
    assert all(Fraction(one) % Fraction(GRID) == 0 for one in grid.tolist())


@given(UNIT, st.floats(-LEVEL / 8, LEVEL / 8))
def test_what_is_near_is_on_the_same_level_or_on_the_next(value: float, off: float) -> None:
    assert abs(level(value + off) - level(value)) <= 1
    assert levels(np.array([value]))[0] == level(value)
    middle = round(value / LEVEL) * LEVEL
    assert level(middle + off) == level(middle)

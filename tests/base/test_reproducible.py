"""Reproducible arithmetic: it is right, its sums depend on no order, and ties are ties."""

from __future__ import annotations

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
    expm1,
    level,
    levels,
    log,
    log1p,
    log2,
    logaddexp,
    on_grid,
    product,
    total,
)

UNIT = st.floats(0.0, 1.0)
LISTS = st.lists(UNIT, max_size=70)


@given(st.floats(1e-300, 1e300))
def test_logarithms(x: float) -> None:
    with localcontext(prec=40):
        exact = Decimal(x).ln()
    assert float(log(x)) == pytest.approx(float(exact), rel=1e-13, abs=1e-300)
    assert float(log2(x)) * math.log(2) == pytest.approx(float(exact), rel=1e-13, abs=1e-300)


@given(st.floats(-0.999999, 1.0).filter(lambda x: abs(x) > 1e-30))
def test_near_nothing_logarithms_and_exponentials_keep_their_digits(x: float) -> None:
    with localcontext(prec=80):
        power = Decimal(x).exp()
        assert float(log1p(x)) == pytest.approx(float((1 + Decimal(x)).ln()), rel=1e-12)
        assert float(expm1(x)) == pytest.approx(float(power - 1), rel=1e-12)


@given(st.floats(-700, 700))
def test_exponentials(x: float) -> None:
    with localcontext(prec=40):
        exact = Decimal(x).exp()
    assert float(exp(x)) == pytest.approx(float(exact), rel=1e-14)


def test_at_the_ends() -> None:
    assert exp([-1e9, -800.0, 0.0]).tolist() == [0.0, 0.0, 1.0]
    assert np.isfinite(exp(1e9))
    assert log2([0.25, 0.5, 1.0, 2.0, 1024.0]).tolist() == [-2.0, -1.0, 0.0, 1.0, 10.0]
    assert log1p(0.0) == expm1(0.0) == 0.0
    assert expm1(-50.0) == -1.0


@given(st.floats(-50, 50), st.floats(-50, 50))
def test_sums_of_exponentials(a: float, b: float) -> None:
    assert float(logaddexp(a, b)) == pytest.approx(float(np.logaddexp(a, b)), rel=1e-12, abs=1e-12)


@given(LISTS)
def test_totals_and_products(values: list[float]) -> None:
    column = np.array(values, dtype=np.float64)
    assert float(total(column)) == pytest.approx(math.fsum(values))
    assert float(product(column)) == pytest.approx(math.prod(values), rel=1e-13, abs=1e-300)
    both = np.stack([column, 2 * column], axis=1)
    assert total(both, axis=0).tolist() == [float(total(column)), float(total(2 * column))]
    assert total(both.T).tolist() == total(both, axis=0).tolist()


def test_a_total_is_taken_in_the_stated_order() -> None:
    values = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert total(np.array(values)) == ((0.1 + 0.4) + 0.3) + (0.2 + 0.5)


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

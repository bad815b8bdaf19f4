"""Bounds of figures: a missed one is told and fails, unless bounds are off."""

from __future__ import annotations

import math

import pytest

from benchmarks.gpu.bounds import Bound, verdict


@pytest.mark.parametrize(
    ("bound", "value", "met"),
    [
        (Bound(at_most=2), 2.0, True),
        (Bound(at_most=2), 2.1, False),
        (Bound(at_least=2), 2.0, True),
        (Bound(at_least=2), 1.9, False),
        (Bound(at_least=1, at_most=2), 1.5, True),
        (Bound(at_least=1, at_most=2), 2.5, False),
        (Bound(at_most=2), math.nan, False),
        (Bound(at_least=2), math.nan, False),
    ],
)
def test_a_value_keeps_a_bound_or_misses_it(bound: Bound, value: float, met: bool) -> None:
    assert bound.met(value) is met


def test_a_missed_bound_fails_and_is_told_unless_bounds_are_off(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [("slow", 3.0, Bound(at_most=2)), ("fast", 1.0, Bound(at_most=2)), ("free", 9.0, None)]
    assert verdict(figures, no_bounds=False) == 1
    assert capsys.readouterr().out == "MISSED slow: 3, not at most 2\n1 of 2 bounds met\n"
    assert verdict(figures, no_bounds=True) == 0
    assert "MISSED slow" in capsys.readouterr().out
    assert verdict(figures[1:], no_bounds=False) == 0

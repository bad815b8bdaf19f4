"""The claim rule's boundaries: exact where no run failed, and never more error than allowed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.search.claims import CleanRuns, clean_bound
from specdebug.search.intervals import SLACK


@pytest.mark.parametrize(("rate", "confidence"), [(0.01, 0.95), (0.05, 0.95), (0.001, 0.95), (0.1, 0.99), (0.5, 0.9)])
def test_without_failures_it_takes_no_more_runs_than_a_fixed_test(rate: float, confidence: float) -> None:
    fixed = math.ceil(math.log(1 - confidence) / math.log1p(-rate))
    assert fixed <= CleanRuns(rate, 1 - confidence).needed(0) <= fixed + math.ceil(0.01 / rate)


def test_the_rule_of_three() -> None:
    assert CleanRuns(0.01, 0.05).needed(0) == 299


def accepted(rule: CleanRuns, rate: float, horizon: int) -> float:
    """Probability to accept within so many runs, run by run."""
    waiting, total = np.zeros(horizon + 2), 0.0
    waiting[0] = 1.0
    for n in range(1, horizon + 1):
        waiting[1:] = waiting[1:] * (1 - rate) + waiting[:-1] * rate
        waiting[0] *= 1 - rate
        for k in range(n + 1):
            if rule.needed(k) > n:
                break
            total += waiting[k]
            waiting[k] = 0.0
    return total


@settings(max_examples=20)
@given(st.floats(0.05, 0.8), st.floats(0.01, 0.3))
def test_the_error_is_never_more_than_allowed(rate: float, error: float) -> None:
    rule = CleanRuns(rate, error)
    assert accepted(rule, rate, 150) <= error * (1 + 2 * SLACK)
    assert accepted(rule, min(0.95, rate * 1.2), 150) <= error * (1 + 2 * SLACK)


@given(st.floats(0.01, 0.9), st.floats(0.01, 0.3))
def test_more_failures_never_need_fewer_runs(rate: float, error: float) -> None:
    rule = CleanRuns(rate, error)
    needed = [rule.needed(k) for k in range(40)]  # across a deepening
    assert needed == sorted(needed)
    assert all(type(one) is int for one in needed)


@given(st.integers(1, 2000), st.floats(0.6, 0.999))
def test_the_bound_is_the_least_rate_that_is_accepted(runs: int, confidence: float) -> None:
    bound = clean_bound(runs, confidence)
    assert CleanRuns(bound * 1.0001, 1 - confidence).needed(0) <= runs if bound * 1.0001 < 1 else True
    assert CleanRuns(bound * 0.9, 1 - confidence).needed(0) > runs - 1
    assert clean_bound(0, confidence) == 1.0


def test_no_such_rate() -> None:
    with pytest.raises(ValueError, match="rate 0"):
        CleanRuns(0, 0.05)

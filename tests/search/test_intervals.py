"""Intervals: known values, invariants, and that they hold what they say."""

import math
import random

import numpy as np
import pytest

from specdebug.search.intervals import (
    anytime_bounds,
    anytime_interval,
    clopper_pearson,
    most_events,
    pooled_interval,
    repeat_margin,
    spread,
)
from tests.chance import most


@pytest.mark.parametrize(
    ("failures", "runs", "low", "high"),
    # Agresti and Coull, "Approximate is better than exact for interval estimation" (1998), and the closed forms
    [(0, 10, 0.0, 1 - 0.025**0.1), (10, 10, 0.025**0.1, 1.0), (5, 10, 0.187086, 0.812914), (1, 10, 0.002529, 0.445016)],
)
def test_clopper_pearson(failures: int, runs: int, low: float, high: float) -> None:
    interval = clopper_pearson(failures, runs, 0.95)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-5)


def test_the_ends_are_where_the_mixture_reaches_its_limit() -> None:
    interval = anytime_interval(3, 20, 0.95)
    for p in (interval.low, interval.high):
        log_mixture = math.lgamma(3.5) + math.lgamma(17.5) - math.lgamma(21) - 2 * math.lgamma(0.5)
        assert log_mixture - 3 * math.log(p) - 17 * math.log1p(-p) == pytest.approx(math.log(20), abs=1e-6)
    assert anytime_interval(0, 0, 0.95).width == 1


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_it_holds_for_all_runs_at_once_where_the_fixed_one_does_not(rate: float) -> None:
    runs = np.arange(1, 301)
    failures = np.cumsum(np.random.default_rng(7).random((600, 300)) < rate, axis=1)
    low, high = anytime_bounds(failures, np.broadcast_to(runs, failures.shape), 0.95)
    left = ~((low <= rate) & (rate <= high)).all(axis=1)
    assert left.sum() <= most(600, 0.05)
    outside = {
        (k, n)
        for n in runs.tolist()
        for k in np.unique(failures[:, n - 1]).tolist()
        if not (fixed := clopper_pearson(k, n, 0.95)).low <= rate <= fixed.high
    }
    missed = [any((k, n) in outside for n, k in enumerate(one, start=1)) for one in failures.tolist()]
    assert sum(missed) > most(600, 0.05)


def test_a_repeat_of_the_same_distribution_lies_within_the_margin() -> None:
    draw = np.random.default_rng(3)
    outside = 0
    for _ in range(2000):
        first, again = draw.choice([1, 1, 2, 3, 4, 4], (2, 24))
        margin = repeat_margin(spread([*map(int, first)]), 24, 24)
        outside += abs(float(first.mean() - again.mean())) > margin
    assert outside <= 8  # 2 are expected of 2000 at 99.9 %; more than 8 come of it once in 5000 times


@pytest.mark.parametrize("mean", [0.1, 0.5, 2.0, 10.0])
def test_most_events_are_exceeded_in_one_tail_only(mean: float) -> None:
    most = most_events(mean)
    chances = [math.exp(-mean) * mean**n / math.factorial(n) for n in range(most + 1)]
    assert 1 - math.fsum(chances) <= 0.0005 < 1 - math.fsum(chances[:-1])


def test_of_clusters_of_one_value_each_it_is_student_s() -> None:
    values = [1, 2, 4, 5]
    between = pooled_interval(values, [1] * 4, 0.95)
    assert between is not None
    # 3.1824 is the 97.5% point of t with 3 degrees of freedom; the variance is 10/3
    assert between.high == pytest.approx(3 + 3.1824463 * (10 / 3 / 4) ** 0.5, rel=1e-6)
    assert between.low == pytest.approx(6 - between.high)


def test_it_holds_the_mean_as_often_as_it_says_where_values_of_a_cluster_are_alike() -> None:
    draws = random.Random(7)
    held = 0
    for _ in range(400):
        clusters = [[draws.choice((1, 6))] * draws.randint(2, 9) for _ in range(60)]
        between = pooled_interval([sum(each) for each in clusters], [len(each) for each in clusters], 0.9)
        assert between is not None
        held += between.low <= 3.5 <= between.high
    assert 0.84 < held / 400 < 0.95

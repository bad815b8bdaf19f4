"""The mean over clusters, and its interval."""

from __future__ import annotations

import random

import pytest

from specdebug.search.intervals import pooled_interval, pooled_mean


def test_the_mean_is_over_values_and_not_over_clusters() -> None:
    assert pooled_mean([2, 18], [2, 6]) == pytest.approx(20 / 8)
    assert pooled_mean([], []) is None
    assert pooled_mean([0, 0], [0, 0]) is None


def test_one_cluster_has_no_interval_and_equal_ones_have_none_to_speak_of() -> None:
    assert pooled_interval([6], [3], 0.95) is None
    assert pooled_interval([6, 0], [3, 0], 0.95) is None
    same = pooled_interval([6, 8], [3, 4], 0.95)
    assert same is not None
    assert same.width == 0
    assert same.low == pytest.approx(2)


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

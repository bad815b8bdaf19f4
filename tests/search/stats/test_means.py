"""How far the mean of a repeated run may lie."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdebug.search.intervals import most_events, repeat_margin, spread


def test_a_repeat_of_the_same_distribution_lies_within_the_margin() -> None:
    draw = np.random.default_rng(3)
    outside = 0
    for _ in range(2000):
        first, again = draw.choice([1, 1, 2, 3, 4, 4], (2, 24))
        margin = repeat_margin(spread([*map(int, first)]), 24, 24)
        outside += abs(float(first.mean() - again.mean())) > margin
    assert outside <= 8  # 2 are expected of 2000 at 99.9 %; more than 8 come of it once in 5000 times


def test_less_is_drawn_again_less_may_move() -> None:
    assert repeat_margin(1.0, 100, 0) == 0
    assert repeat_margin(1.0, 100, 25) == pytest.approx(repeat_margin(1.0, 100, 100) / 2)
    assert 100 < repeat_margin(1.0, 1, 1) < math.inf


def test_a_few_equal_values_are_no_proof_that_all_are_equal() -> None:
    assert spread([4] * 8) > 0
    assert spread([1] * 8) == spread([]) == 0


@pytest.mark.parametrize("mean", [0.1, 0.5, 2.0, 10.0])
def test_most_events_are_exceeded_in_one_tail_only(mean: float) -> None:
    most = most_events(mean)
    chances = [math.exp(-mean) * mean**n / math.factorial(n) for n in range(most + 1)]
    assert 1 - math.fsum(chances) <= 0.0005 < 1 - math.fsum(chances[:-1])

"""The chi-square test: a p-value is as rare as it says, down to cells of few counts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.chance import fewest, most
from tests.engine.statistics import chi_square_p_value

TABLES = 3000


@pytest.fixture(scope="module")
def sound() -> list[float]:
    """p-values of counts that do come from the stated probabilities: 200 outcomes, most of them rare."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(200, 0.3))
    stated = dict(enumerate(shares.tolist()))
    counts = rng.multinomial(2500, shares, size=TABLES)
    return [chi_square_p_value(dict(enumerate(row.tolist())), stated) for row in counts]


@pytest.mark.parametrize("level", [0.5, 0.1, 0.01])
def test_sound_counts_fall_below_a_level_as_often_as_it_says(sound: list[float], level: float) -> None:
    """A tenth off at most: the statistic is chi-square distributed in the limit of many counts a cell."""
    below = sum(value < level for value in sound)
    assert fewest(TABLES, 0.9 * level) <= below <= most(TABLES, 1.1 * level)


def test_counts_that_come_from_elsewhere_do() -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(200, 0.3))
    other = shares**1.4 / (shares**1.4).sum()
    counts = dict(enumerate(rng.multinomial(2500, shares).tolist()))
    assert chi_square_p_value(counts, dict(enumerate(other.tolist()))) < 1e-6


def test_what_cannot_happen_may_not_be_counted() -> None:
    assert chi_square_p_value({"a": 50, "c": 1}, {"a": 1.0}) == 0.0
    assert chi_square_p_value({"a": 50}, {"a": 1.0}) == 1.0

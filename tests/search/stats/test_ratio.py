"""The two-rate test: both errors exact, both limits drawn in as far as they may be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdebug.search.claims import RatioTest, ended, ratio_test
from tests.chance import fewest, most


@pytest.mark.parametrize(("below", "above", "error"), [(0.05, 0.2, 0.05), (0.1, 0.3, 0.01), (0.2, 0.9, 0.05)])
def test_errors_are_at_most_what_is_allowed(below: float, above: float, error: float) -> None:
    test = ratio_test(below, above, error)
    assert ended(test, below)[1] <= error
    assert ended(test, above)[0] <= error
    assert max(test.up, test.down) < -math.log(error)  # drawn in
    assert ended(test, below / 2)[1] < ended(test, below)[1]
    assert ended(test, (1 + above) / 2)[0] < ended(test, above)[0]


def test_rates_that_are_near_keep_the_simple_limits() -> None:
    assert ratio_test(0.3, 0.35, 0.05).up == pytest.approx(math.log(20))


def test_following_every_path_agrees_with_simulation() -> None:
    test = RatioTest(0.1, 0.4, 2.0, 1.5)
    failures = np.cumsum(np.random.default_rng(3).random((4000, 300)) < 0.25, axis=1)
    ratio = failures * test.failed + (np.arange(1, 301) - failures) * test.passed
    over = (ratio >= test.up) | (ratio <= -test.down)
    assert over.any(axis=1).all()
    low = (ratio[np.arange(4000), over.argmax(axis=1)] <= -test.down).sum()
    exact = ended(test, 0.25)
    assert sum(exact) == pytest.approx(1, abs=1e-5)
    assert fewest(4000, exact[0]) <= low <= most(4000, exact[0])

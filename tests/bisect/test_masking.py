"""Masking rates from trials that were masked or not."""

from __future__ import annotations

import numpy as np
import pytest

from specdebug.bisect.masking import Masking


def test_nothing_masked_discounts_nothing() -> None:
    masking = Masking(4)
    masking.observe(np.ones(4, dtype=bool), False)
    assert masking.rates.tolist() == [0.0] * 4
    assert masking.clear.tolist() == [1.0] * 4


def test_rates_are_recovered() -> None:
    truth, rng = np.array([0.6, 0.0, 0.3, 0.0, 0.0]), np.random.default_rng(4)
    masking = Masking(len(truth))
    for _ in range(400):
        members = rng.random(len(truth)) < 0.5
        masking.observe(members, bool(rng.random() > np.prod(1 - truth[members])))
    assert masking.rates == pytest.approx(truth, abs=0.1)


def test_a_set_that_is_always_masked_never_counts_as_clear() -> None:
    masking, members = Masking(3), np.array([True, False, False])
    for _ in range(200):
        masking.observe(members, True)
    assert 0 < masking.clear[0] < 0.05

"""Masking rates from trials that were masked or not."""

from __future__ import annotations

import numpy as np
import pytest

from specdebug.search.bisect import Masking


def test_nothing_masked_discounts_nothing() -> None:
    masking = Masking(4)
    masking.observe(np.ones(4, dtype=bool), False)
    assert masking.rates.tolist() == [0.0] * 4
    assert masking.clear.tolist() == [1.0] * 4


def test_rates_are_recovered() -> None:
    truth = np.array([0.6, 0.0, 0.3, 0.0, 0.0])
    estimates = []
    for seed in range(20):
        rng, masking = np.random.default_rng(seed), Masking(len(truth))
        for _ in range(100):
            members = rng.random(len(truth)) < 0.5
            masking.observe(members, bool(rng.random() > np.prod(1 - truth[members])))
        estimates.append(masking.rates)
    # one estimate from 50 trials with a candidate is off by 0.07, the mean of twenty by a quarter of that
    assert np.mean(estimates, axis=0) == pytest.approx(truth, abs=0.08)
    assert np.std(estimates, axis=0).max() < 0.2


def test_a_set_that_is_always_masked_never_counts_as_clear() -> None:
    masking, members = Masking(3), np.array([True, False, False])
    for _ in range(200):
        masking.observe(members, True)
    assert 0 < masking.clear[0] < 0.05

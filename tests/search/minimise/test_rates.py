"""Rates: what trials say, and how they are learned."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdebug.search.subset import TrialRates, learn

START = TrialRates(0.3, 0.6, 0.012)
COUNT = st.integers(0, 30)


def odds(*tally, rates=START):
    return float(rates.log_odds(np.array([tally]))[0])


def test_no_trials_say_nothing():
    assert odds(0, 0, 0, 0) == pytest.approx(0.0)


@given(COUNT, COUNT, COUNT, COUNT)
def test_a_failure_speaks_for_the_whole_and_a_clean_run_against_it(failed, clean, known_failed, known_clean):
    here = odds(failed, clean, known_failed, known_clean)
    assert odds(failed + 1, clean, known_failed, known_clean) < here
    assert odds(failed, clean + 1, known_failed, known_clean) > here
    assert odds(failed, clean, known_failed + 1, known_clean) < here
    assert odds(failed, clean, known_failed, known_clean + 1) > here


def test_a_known_seed_that_fails_says_less_than_a_fresh_one():
    assert odds(0, 0, 1, 0) > odds(1, 0, 0, 0)


def test_a_known_seed_that_is_clean_says_more_than_a_fresh_one():
    assert odds(0, 0, 0, 1) > odds(0, 1, 0, 0)


def test_rates_move_towards_what_is_seen():
    seen = np.array([[30, 20, 0, 0], [0, 0, 9, 1], [2, 18, 0, 0]])
    learned = learn(seen, np.array([1.0, 1.0, 0.0]), np.ones(3), START)
    assert 0.45 < learned.fresh < 0.6
    assert learned.known > 0.75
    assert 0.02 < learned.false < 0.06


def test_a_rate_is_not_learned_away():
    """Clean runs of what is taken for whole do not make a failure that has become rare one that is kept."""
    learned = learn(np.array([[0, 500, 0, 0]]), np.ones(1), np.ones(1), START)
    assert learned.fresh == pytest.approx(0.6 * START.fresh)


def test_a_known_seed_never_counts_for_less_than_a_fresh_one():
    learned = learn(np.array([[0, 0, 0, 40]]), np.ones(1), np.ones(1), START)
    assert learned.known == pytest.approx(learned.fresh)

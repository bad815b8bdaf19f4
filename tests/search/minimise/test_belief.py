"""Beliefs against exact sums over all subsets, and what they must never do."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.search.subset import NeedBelief, TrialRates

RATES = TrialRates(0.3, 0.6, 0.012)


def exact(belief, size, prior):
    """Marginals by summing over every set of needed elements, at the rates the belief has come to."""
    log_odds = {removed: float(belief.rates.log_odds(np.array([belief.tally(removed)]))[0]) for removed in belief.tried}
    weights = {}
    for count in range(size + 1):
        for needed in combinations(range(size), count):
            log = count * np.log(prior) + (size - count) * np.log1p(-prior)
            log += sum(value for removed, value in log_odds.items() if removed & set(needed))
            weights[needed] = np.exp(log)
    total = sum(weights.values())
    return [sum(w for needed, w in weights.items() if one in needed) / total for one in range(size)]


def told(size, prior, trials):
    belief = NeedBelief(size, prior, RATES)
    for removed, failed, known in trials:
        belief.observe(frozenset(removed), failed, known)
    for _ in range(12):  # rates and marginals settle on each other
        belief.update(frozenset())
    return belief


def test_before_any_trial_everything_is_as_likely_as_the_prior():
    belief = NeedBelief(4, 0.2, RATES)
    belief.update(frozenset())
    assert belief.needed == pytest.approx([0.2] * 4)
    assert belief.fine(frozenset({0, 1})) == pytest.approx(0.64)


@pytest.mark.parametrize(
    "trials",
    [
        [({0, 1}, False, False)] * 6,
        [({0, 1}, False, False)] * 4 + [({0}, True, False)],
        [({0, 1}, False, False)] * 3 + [({2, 3, 4}, True, False), ({1, 5}, False, False)],
        [({0, 1}, True, False), ({0, 1, 2}, False, False), ({0, 1, 3}, False, True), ({0, 1, 4}, True, True)],
    ],
)
def test_marginals_are_exact_where_sets_form_a_tree(trials):
    belief = told(6, 0.1, trials)
    assert belief.needed == pytest.approx(exact(belief, 6, 0.1), abs=0.02)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.frozensets(st.integers(0, 5), min_size=1), st.booleans(), st.booleans()), min_size=1, max_size=8
    )
)
def test_marginals_are_near_the_exact_ones_and_always_probabilities(trials):
    belief = told(6, 0.1, trials)
    assert np.all(belief.needed >= 0)
    assert np.all(belief.needed <= 1)
    assert all(0 <= belief.fine(removed) <= 1 for removed in belief.tried)
    assert np.mean(np.abs(belief.needed - exact(belief, 6, 0.1))) < 0.15


def test_clean_runs_without_a_group_raise_all_of_it_and_a_clean_run_of_one_explains_the_rest():
    group = told(10, 0.1, [({0, 1, 2}, False, False)] * 10)
    assert group.needed[:3].min() > 0.2
    assert group.needed[3:].max() < 0.11
    found = told(10, 0.1, [({0, 1, 2}, False, False)] * 10 + [({0}, False, False)] * 25)
    assert found.needed[0] > 0.95
    assert found.needed[1:3].max() < 0.15


def test_what_failed_without_a_group_clears_it():
    belief = told(10, 0.1, [({0, 1, 2}, True, False)] * 2)
    assert belief.needed[:3].max() < 0.01
    assert belief.fine(frozenset({0, 1, 2})) > 0.99


def test_what_cannot_be_taken_away_together_is_needed_in_part():
    belief = NeedBelief(5, 0.1, RATES)
    belief.exclude(frozenset({0, 1}))
    belief.observe(frozenset({0}), True, False)
    belief.observe(frozenset({0}), True, False)
    belief.update(frozenset({0}))
    assert belief.needed[1] > 0.99
    assert belief.fine(frozenset({0, 1})) < 0.01


def test_evidence_against_one_element_comes_from_trials_without_it_alone():
    belief = told(5, 0.1, [({0}, False, False)] * 8 + [({1, 2}, False, False)] * 8)
    assert belief.against[0] > 1
    assert belief.against[1:] == pytest.approx([0.0] * 4)
    belief.update(frozenset({1}))
    assert belief.against[2] > 1

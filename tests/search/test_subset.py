"""Beliefs and rates against exact sums, and the search over one set of elements."""

import itertools
import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.search.subset import ACCEPT, NeedBelief, SubsetSearch, TrialRates, learn
from tests.chance import most


def search(size, fails, possible=lambda removed: True, rate=0.95, failing=(-1, -2, -3), limit=2000):
    """Run a search to its end; returns it and its trials."""
    counter = itertools.count()
    found = SubsetSearch(size, TrialRates(rate, max(rate, 0.6), 0.012), lambda: next(counter), failing, possible)
    trials = []
    while (probe := found.next_probe()) is not None:
        failed = fails(probe.removed, probe.seed)
        trials.append((probe, failed))
        found.observe(probe, failed)
        assert len(trials) < limit
    return found, trials


@settings(max_examples=40)
@given(st.integers(1, 24), st.data())
def test_exactly_what_is_needed_is_left_of_something_that_always_fails(size, data):
    needed = data.draw(st.frozensets(st.integers(0, size - 1), max_size=4))
    found, _ = search(size, lambda removed, seed: not removed & needed)
    assert frozenset(range(size)) - found.removed == needed
    assert all(found.confirmed(one) for one in needed)


def test_few_trials_are_enough_where_nothing_is_by_chance():
    _, trials = search(50, lambda removed, seed: not removed & {7, 31})
    assert len(trials) < 60


def test_what_is_needed_by_a_flake_is_left():
    lost = kept = 0
    for number in range(12):
        needed = frozenset(random.Random(number).sample(range(20), 2))

        def fails(removed, seed, number=number, needed=needed):
            return not removed & needed and random.Random(f"{number}:{seed}:{sorted(removed)}").random() < 0.4

        found, _ = search(20, fails, rate=0.4)
        lost += bool(needed & found.removed)
        kept += len(found.removed) < 18
    assert lost <= most(12, 1 - ACCEPT)
    assert kept <= most(12, 0.05)  # an element is confirmed at 95%


def test_what_a_false_failure_took_away_comes_back():
    """The first time something needed is gone it fails all the same, once."""
    wrong = 0
    for needed in range(12):
        lied = []

        def fails(removed, seed, needed=needed, lied=lied):
            if needed in removed and not lied:
                lied.append(removed)
                return True
            return needed not in removed and random.Random(f"{needed}:{seed}").random() < 0.6

        found, _ = search(12, fails, rate=0.6, failing=())
        assert lied
        wrong += frozenset(range(12)) - found.removed != {needed}
    assert wrong <= most(12, 0.05)


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


def test_evidence_against_one_element_comes_from_trials_without_it_alone():
    belief = told(5, 0.1, [({0}, False, False)] * 8 + [({1, 2}, False, False)] * 8)
    assert belief.against[0] > 1
    assert belief.against[1:] == pytest.approx([0.0] * 4)
    belief.update(frozenset({1}))
    assert belief.against[2] > 1


START = TrialRates(0.3, 0.6, 0.012)
COUNT = st.integers(0, 30)


def odds(*tally, rates=START):
    return float(rates.log_odds(np.array([tally]))[0])


@given(COUNT, COUNT, COUNT, COUNT)
def test_a_failure_speaks_for_the_whole_and_a_clean_run_against_it(failed, clean, known_failed, known_clean):
    here = odds(failed, clean, known_failed, known_clean)
    assert odds(failed + 1, clean, known_failed, known_clean) < here
    assert odds(failed, clean + 1, known_failed, known_clean) > here
    assert odds(failed, clean, known_failed + 1, known_clean) < here
    assert odds(failed, clean, known_failed, known_clean + 1) > here


def test_a_rate_is_not_learned_away():
    """Clean runs of what is taken for whole do not make a failure that has become rare one that is kept."""
    learned = learn(np.array([[0, 500, 0, 0]]), np.ones(1), np.ones(1), START)
    assert learned.fresh == pytest.approx(0.6 * START.fresh)

"""The search over one set of elements."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.search.subset import ACCEPT, KNOWN_SEEDS, SubsetSearch, TrialRates
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


def test_what_cannot_be_is_never_tried():
    def possible(removed):
        return not {0, 1} <= removed and len(removed) < 6

    found, trials = search(6, lambda removed, seed: True, possible)
    assert all(possible(probe.removed) for probe, _ in trials)
    assert len(found.removed) == 5


def test_either_of_two_may_go_but_not_both():
    found, _ = search(8, lambda removed, seed: not {2, 5} <= removed)
    assert len({2, 5} & found.removed) == 1
    assert len(found.removed) == 7


def test_a_known_seed_is_tried_once_with_one_candidate_and_not_too_many_are():
    needed = frozenset({4})
    seeds = tuple(range(-20, 0))
    _, trials = search(10, lambda removed, seed: not removed & needed, rate=0.5, failing=seeds)
    known = [(probe.removed, probe.seed) for probe, _ in trials if probe.known]
    assert known
    assert len(known) == len(set(known))
    assert max(sum(removed == one for removed, _ in known) for one, _ in known) <= KNOWN_SEEDS


def test_trials_that_still_run_are_taken_into_account():
    counter = itertools.count()
    found = SubsetSearch(30, TrialRates(0.3, 0.6, 0.012), lambda: next(counter), (-1,), lambda removed: True)
    pending = []
    for _ in range(6):
        pending.append(found.next_probe(pending))
    assert len({probe.seed for probe in pending if not probe.known}) == sum(not probe.known for probe in pending)
    assert len({(probe.removed, probe.seed) for probe in pending}) == 6

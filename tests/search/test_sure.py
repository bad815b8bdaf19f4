"""The search over what failed in every trial: one trial a candidate, and seeds that tell luck apart."""

from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.search.subset import TrialRates
from specdebug.search.sure import SureSearch

KNOWN = [1, 2, 3]


def search(size, fails, *, together=False, kinds=(), doubts=False, possible=lambda removed: True, jobs=1):
    """Search to the end with up to ``jobs`` trials under way; return the search and its trials in order."""
    seeds = iter(range(100, 10_000))
    found = SureSearch(
        size, TrialRates(0.9, 0.98, 0.012, True), lambda: next(seeds), KNOWN, possible,
        together=together, kinds=kinds, doubts=doubts,
    )  # fmt: skip
    trials, running = [], []
    while True:
        while len(running) < jobs and (probe := found.next_probe(running)) is not None:
            running.append(probe)
        if not running:
            return found, trials
        probe = running.pop(0)
        trials.append(probe)
        found.observe(probe, fails(probe.removed, probe.seed))
        assert len(trials) < 500


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 24), st.booleans(), st.integers(1, 3), st.data())
def test_exactly_what_is_needed_is_left(size, together, jobs, data):
    needed = data.draw(st.frozensets(st.integers(0, size - 1), max_size=4))
    found, trials = search(size, lambda removed, seed: not removed & needed, together=together, jobs=jobs)
    assert frozenset(range(size)) - found.removed == needed
    assert all(found.confirmed(one) for one in needed)
    assert jobs > 1 or len(trials) <= 2 * size + 1


def test_halves_are_tried_before_their_parts():
    _, trials = search(50, lambda removed, seed: not removed & {7, 31}, together=True)
    assert len(trials) <= 24


def test_what_one_seed_alone_does_not_need_is_kept():
    """The seed that is known best fails without 3 and 4, others need 3."""
    found, _ = search(8, lambda removed, seed: 3 not in removed or seed == KNOWN[0], together=False)
    assert found.removed == frozenset(range(8)) - {3}
    assert found.fresh(found.removed)[0] >= 1


def test_in_doubt_it_is_a_search_by_what_is_believed():
    """Of other seeds, every second pair fails."""
    found, _ = search(6, lambda removed, seed: 2 not in removed and (seed in KNOWN or seed % 4 > 1), doubts=True)
    assert 2 not in found.removed
    assert not found.rates.sure


def test_others_of_a_kind_are_kept_with_the_first():
    found, trials = search(6, lambda removed, seed: not removed & {0, 1, 2}, kinds=["prompt"] * 3 + ["length"] * 3)
    assert found.removed == {3, 4, 5}
    assert [found.confirmed(element) for element in (0, 1, 2)] == [True, False, False]
    assert len(trials) == 1 + 3 + 1


def test_what_cannot_be_taken_away_costs_no_trial():
    found, trials = search(3, lambda removed, seed: True, possible=lambda removed: 1 not in removed)
    assert found.removed == {0, 2}
    assert found.confirmed(1)
    assert len(trials) == 2 + 1

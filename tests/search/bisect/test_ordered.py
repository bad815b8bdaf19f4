"""The search over commits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.search.bisect import OrderedBisector
from tests.chance import most

COMMITS = [f"{i:04x}" for i in range(200)]
STATED = 0.05
"""At a confidence of 95% no more answers are wrong than this share."""


def at(trial: frozenset[str]) -> int:
    """The index of the commit that a trial checks out; -1 for the state before the first."""
    return next((COMMITS.index(one) for one in trial), -1)


def search(culprit: int, manifest: float, false_failure: float, seed: int = 0) -> OrderedBisector:
    """A finished search for the commit of that index; -1 for none."""
    bisector, rng = OrderedBisector(COMMITS), random.Random(seed)
    while bisector.answer is None and bisector.trials < 2000:
        trial = bisector.next_trial()
        shows = 0 <= culprit <= at(trial) and rng.random() < manifest
        bisector.observe(trial, bool(shows or rng.random() < false_failure))
    return bisector


def names(bisector: OrderedBisector, culprit: int) -> bool:
    """Whether its answer is the commit of that index; -1 for none."""
    right = {COMMITS[culprit]} if culprit >= 0 else frozenset[str]()
    return bisector.answer is not None and bisector.answer.culprits == right


def test_a_deterministic_bug() -> None:
    found = [search(culprit, 1.0, 0.0) for culprit in range(200)]
    assert sum(not names(bisector, culprit) for culprit, bisector in enumerate(found)) <= most(200, STATED)
    assert max(bisector.trials for bisector in found) <= 18  # halving 200 takes 8, without ever making sure


def test_flaky_bugs() -> None:
    wrong = 0
    for seed in range(60):
        rng = random.Random(1000 + seed)
        culprit = rng.randrange(-1, 200)
        wrong += not names(search(culprit, rng.uniform(0.3, 1), rng.uniform(0, 0.03), seed), culprit)
    assert wrong <= most(60, STATED)


def test_bad_before_the_first_commit_is_nobodys_fault() -> None:
    bisector = OrderedBisector(COMMITS)
    while bisector.answer is None:
        bisector.observe(bisector.next_trial(), True)
    assert bisector.answer.culprits == frozenset()


def test_commits_that_do_not_build_are_searched_around() -> None:
    wrong = masked = trials = 0
    for seed in range(24):
        rng = random.Random(seed)
        start = rng.randrange(20, 120)
        end = start + rng.randrange(10, 40)
        culprit, bisector = rng.randrange(end + 2, 200), OrderedBisector(COMMITS)
        while bisector.answer is None and bisector.trials < 200:
            trial = bisector.next_trial()
            broken = start <= at(trial) < end
            masked += broken
            bisector.observe(trial, None if broken else at(trial) >= culprit)
        wrong += not names(bisector, culprit)
        trials += bisector.trials
    assert wrong <= most(24, STATED)
    assert masked <= trials / 8  # about the share of commits that do not build


def test_a_culprit_among_commits_that_do_not_build_stalls() -> None:
    wrong = untold = 0
    for seed in range(24):
        rng = random.Random(seed)
        start = rng.randrange(5, 190)
        end = start + rng.randrange(2, 8)
        culprit, bisector = rng.randrange(start + 1, end), OrderedBisector(COMMITS)
        while bisector.answer is None and not bisector.stalled and bisector.trials < 500:
            trial = bisector.next_trial()
            bisector.observe(trial, None if start <= at(trial) < end else at(trial) >= culprit)
        wrong += bisector.answer is not None
        suspects = frozenset[str]().union(*(culprits for culprits, _ in bisector.posterior(end - start + 1)))
        untold += suspects != set(COMMITS[start : end + 1])
        assert bisector.trials < 200
    assert wrong <= most(24, STATED)
    assert untold <= most(24, STATED)


CHECKED_OUT = st.frozensets(st.sampled_from(COMMITS), max_size=1)


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(st.frozensets(st.sampled_from(COMMITS), max_size=1), st.sampled_from([True, False, None])),
        max_size=10,
    )
)
def test_the_same_observations_give_the_same_state(trials: list[tuple[frozenset[str], bool | None]]) -> None:
    one, other = OrderedBisector(COMMITS), OrderedBisector(COMMITS)
    for trial, failed in trials:
        one.observe(trial, failed)
        one.next_trial([trial, frozenset(COMMITS[3:4])])
        other.observe(trial, failed)
    assert one.posterior(300) == other.posterior(300)
    assert one.next_trial() == other.next_trial()


def test_running_trials_spread_out() -> None:
    bisector = OrderedBisector(COMMITS)
    pending: list[frozenset[str]] = []
    for _ in range(3):
        pending.append(bisector.next_trial(pending))
    assert len(set(pending)) == 3


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="needs candidates"):
        OrderedBisector([])
    for trial in ({"other"}, set(COMMITS[:2])):
        with pytest.raises(ValueError, match="is no trial: one candidate"):
            OrderedBisector(COMMITS).observe(frozenset(trial), True)

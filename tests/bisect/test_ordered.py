"""The search over commits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.bisect import OrderedBisector

COMMITS = [f"{i:04x}" for i in range(200)]


def search(culprit: int, manifest: float, false_failure: float, seed: int = 0) -> OrderedBisector:
    """A finished search for the commit of that index; -1 for none."""
    bisector, rng = OrderedBisector(COMMITS), np.random.default_rng(seed)
    while bisector.answer is None and bisector.trials < 2000:
        trial = bisector.next_trial()
        shows = 0 <= culprit <= trial and rng.random() < manifest
        bisector.observe(trial, bool(shows or rng.random() < false_failure))
    return bisector


@pytest.mark.parametrize("culprit", [0, 1, 57, 198, 199])
def test_a_deterministic_bug(culprit: int) -> None:
    bisector = search(culprit, 1.0, 0.0)
    assert bisector.answer is not None
    assert bisector.answer.culprits == {COMMITS[culprit]}
    assert bisector.trials <= 18  # halving 200 takes 8, without ever making sure


def test_flaky_bugs() -> None:
    rng = np.random.default_rng(8)
    right = []
    for seed in range(20):
        culprit = int(rng.integers(-1, 200))
        answer = search(culprit, rng.uniform(0.3, 1), rng.uniform(0, 0.03), seed).answer
        assert answer is not None
        right.append(answer.culprits == ({COMMITS[culprit]} if culprit >= 0 else frozenset()))
    assert np.mean(right) >= 0.85


def test_bad_before_the_first_commit_is_nobodys_fault() -> None:
    bisector = OrderedBisector(COMMITS)
    while bisector.answer is None:
        bisector.observe(bisector.next_trial(), True)
    assert bisector.answer.culprits == frozenset()


def test_commits_that_do_not_build_are_searched_around() -> None:
    bisector, masked = OrderedBisector(COMMITS), 0
    while bisector.answer is None and bisector.trials < 200:
        trial = bisector.next_trial()
        broken = 60 <= trial < 90
        masked += broken
        bisector.observe(trial, None if broken else trial >= 100)
    assert bisector.answer is not None
    assert bisector.answer.culprits == {COMMITS[100]}
    assert masked <= 5


def test_a_culprit_among_commits_that_do_not_build_stalls() -> None:
    bisector = OrderedBisector(COMMITS)
    while bisector.answer is None and not bisector.stalled and bisector.trials < 500:
        trial = bisector.next_trial()
        bisector.observe(trial, None if 80 <= trial < 84 else trial >= 82)
    assert bisector.answer is None
    assert bisector.trials < 100
    suspects = frozenset().union(*(culprits for culprits, _ in bisector.posterior(5)))
    assert suspects == set(COMMITS[80:85])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 199), st.sampled_from([True, False, None])), max_size=10))
def test_the_same_observations_give_the_same_state(trials: list[tuple[int, bool | None]]) -> None:
    one, other = OrderedBisector(COMMITS), OrderedBisector(COMMITS)
    for trial, failed in trials:
        one.observe(trial, failed)
        one.next_trial([trial, 3])
        other.observe(trial, failed)
    assert one.posterior(300) == other.posterior(300)
    assert one.next_trial() == other.next_trial()


def test_running_trials_spread_out() -> None:
    bisector = OrderedBisector(COMMITS)
    pending: list[int] = []
    for _ in range(3):
        pending.append(bisector.next_trial(pending))
    assert len(set(pending)) == 3


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="needs candidates"):
        OrderedBisector([])
    with pytest.raises(ValueError, match="200 is no trial: -1 to 199"):
        OrderedBisector(COMMITS).observe(200, True)

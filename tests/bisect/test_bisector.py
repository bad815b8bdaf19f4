"""The search over sets: what it answers, and that its state is a function of what it observed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.bisect import Bisector

NAMES = [f"fix-{i}" for i in range(16)]
NOBODY: frozenset[str] = frozenset()


def search(culprits: frozenset[str], manifest: float, false_failure: float, seed: int, limit: int = 2000) -> Bisector:
    """A finished search against a simulated bug; ``culprits`` empty means that there is none."""
    rng = np.random.default_rng(seed)
    bisector = Bisector(NAMES, seed=seed)
    while bisector.answer is None and bisector.trials < limit:
        trial = bisector.next_trial()
        shows = bool(culprits) and culprits <= trial and rng.random() < manifest
        bisector.observe(trial, bool(shows or rng.random() < false_failure))
    return bisector


@pytest.mark.parametrize("culprit", NAMES)
def test_a_perfect_oracle_needs_few_trials(culprit: str) -> None:
    bisector = search(frozenset({culprit}), 1.0, 0.0, seed=3)
    assert bisector.answer is not None
    assert bisector.answer.culprits == {culprit}
    assert bisector.answer.probability >= 0.95
    assert bisector.trials <= 9


def test_flaky_singles_pairs_and_nobody_are_told_apart() -> None:
    rng = np.random.default_rng(11)
    right, stated = [], []
    for case in range(45):
        culprits = frozenset(rng.choice(NAMES, case % 3, replace=False).tolist())
        bisector = search(culprits, rng.uniform(0.3, 1.0), rng.uniform(0, 0.05), seed=case)
        assert bisector.answer is not None
        right.append(bisector.answer.culprits == culprits)
        stated.append(bisector.answer.probability)
    assert np.mean(right) >= 0.9
    assert min(stated) >= 0.95


def test_a_test_that_fails_whatever_is_switched_on_has_no_culprit() -> None:
    bisector = search(NOBODY, 0.0, 0.9, seed=0)
    assert bisector.answer is not None
    assert bisector.answer.culprits == NOBODY
    assert bisector.rates.false_failure.mean > 0.5


def test_rates_are_learned() -> None:
    bisector = search(frozenset({NAMES[2], NAMES[9]}), 0.6, 0.03, seed=5)
    manifest = bisector.rates.manifest
    assert manifest.low <= 0.7
    assert manifest.high >= 0.5
    assert manifest.low <= manifest.mean <= manifest.high
    assert bisector.rates.false_failure.mean < 0.15


TRIALS = st.lists(
    st.tuples(st.frozensets(st.sampled_from(NAMES[:6])), st.sampled_from([True, False, None])), max_size=12
)


@settings(max_examples=30, deadline=None)
@given(TRIALS)
def test_the_same_observations_give_the_same_state(trials: list[tuple[frozenset[str], bool | None]]) -> None:
    one, other = Bisector(NAMES[:6], seed=1), Bisector(NAMES[:6], seed=1)
    for reverted, failed in trials:
        one.observe(reverted, failed)
        one.next_trial([reverted])  # asking changes nothing
        other.observe(reverted, failed)
    assert one.posterior(30) == other.posterior(30)
    assert one.next_trial() == other.next_trial()
    assert one.trials == len(trials)
    assert sum(p for _, p in one.posterior(30)) == pytest.approx(1)


def test_running_trials_are_not_repeated() -> None:
    bisector = Bisector(NAMES)
    pending: list[frozenset[str]] = []
    for _ in range(4):
        pending.append(bisector.next_trial(pending))
    assert len(set(pending)) == 4


def test_parallel_trials_end_with_the_answer() -> None:
    culprits, rng = frozenset({NAMES[4]}), np.random.default_rng(2)
    bisector, pending = Bisector(NAMES), []
    while bisector.answer is None and bisector.trials < 300:
        while len(pending) < 3:
            pending.append(bisector.next_trial(pending))
        done = pending.pop(0)
        bisector.observe(done, bool(culprits <= done and rng.random() < 0.5))
    assert bisector.answer is not None
    assert bisector.answer.culprits == culprits


def test_masking_is_learned_and_avoided() -> None:
    """One candidate breaks every trial it is in: the search works around it."""
    breaker, culprits = NAMES[7], frozenset({NAMES[3]})
    bisector, masked = Bisector(NAMES), 0
    while bisector.answer is None and bisector.trials < 200:
        trial = bisector.next_trial()
        masked += breaker in trial
        bisector.observe(trial, None if breaker in trial else culprits <= trial)
    assert bisector.answer is None or bisector.answer.culprits == culprits
    rates = bisector.masking
    assert max(rates, key=rates.__getitem__) == breaker
    assert masked <= bisector.trials / 2


def test_a_culprit_that_cannot_be_tested_stalls_the_search() -> None:
    breaker, bisector = NAMES[7], Bisector(NAMES)
    while bisector.answer is None and not bisector.stalled and bisector.trials < 1000:
        trial = bisector.next_trial()
        bisector.observe(trial, None if breaker in trial else False)
    assert bisector.answer is None or bisector.answer.culprits == NOBODY
    assert bisector.trials < 1000


def test_one_culprit_only() -> None:
    bisector = Bisector(NAMES, max_culprits=1)
    assert len(bisector.posterior(1000)) == 17
    assert len(Bisector(NAMES).posterior(1000)) == 17 + 120
    assert len(Bisector(NAMES[:1]).posterior(1000)) == 2


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="needs candidates"):
        Bisector([])
    with pytest.raises(ValueError, match="another name"):
        Bisector(["a", "a"])
    with pytest.raises(ValueError, match="confidence"):
        Bisector(NAMES, confidence=1.0)
    with pytest.raises(ValueError, match="max_culprits"):
        Bisector(NAMES, max_culprits=3)
    with pytest.raises(ValueError, match="'fix-99' is none"):
        Bisector(NAMES).observe(frozenset({"fix-99"}), True)

"""The search over sets: what it answers, and that its state is a function of what it observed.

What it states is a probability, so it is held to that over many drawn cases, with bounds from ``tests.chance``.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.search.bisect import Bisector, openings
from tests.chance import fewest, most

NAMES = [f"fix-{i}" for i in range(16)]
NO_CULPRIT: frozenset[str] = frozenset()


STATED = 0.05
"""At a confidence of 95% no more answers are wrong than this share."""


def search(culprits: frozenset[str], manifest: float, false_failure: float, seed: int, limit: int = 2000) -> Bisector:
    """A finished search against a simulated bug; ``culprits`` empty means that there is none."""
    rng = random.Random(seed)
    bisector = Bisector(NAMES, seed=seed)
    while bisector.answer is None and bisector.trials < limit:
        trial = bisector.next_trial()
        shows = bool(culprits) and culprits <= trial and rng.random() < manifest
        bisector.observe(trial, bool(shows or rng.random() < false_failure))
    return bisector


def answered(bisector: Bisector) -> frozenset[str] | None:
    return None if bisector.answer is None else bisector.answer.culprits


def test_a_perfect_oracle_needs_few_trials() -> None:
    found = [(search(frozenset({one}), 1.0, 0.0, seed), one) for one in NAMES for seed in range(4)]
    assert sum(answered(bisector) != {one} for bisector, one in found) <= most(len(found), STATED)
    assert all(bisector.answer is None or bisector.answer.probability >= 0.95 for bisector, _ in found)
    assert np.mean([bisector.trials for bisector, _ in found]) <= 8  # halving takes 4, and never makes sure


def test_flaky_singles_pairs_and_nobody_are_told_apart() -> None:
    wrong, stated = 0, []
    for case in range(45):
        rng = random.Random(case)
        culprits = frozenset(rng.sample(NAMES, case % 3))
        bisector = search(culprits, rng.uniform(0.3, 1.0), rng.uniform(0, 0.05), seed=case)
        assert bisector.answer is not None
        wrong += bisector.answer.culprits != culprits
        stated.append(bisector.answer.probability)
    assert wrong <= most(45, STATED)
    assert min(stated) >= 0.95


def test_a_test_that_fails_whatever_is_switched_on_has_no_culprit() -> None:
    found = [search(NO_CULPRIT, 0.0, 0.9, seed) for seed in range(20)]
    assert sum(answered(bisector) != NO_CULPRIT for bisector in found) <= most(20, STATED)
    assert np.mean([bisector.rates.false_failure.mean for bisector in found]) > 0.5


def test_rates_are_learned() -> None:
    found = [search(frozenset({NAMES[2], NAMES[9]}), 0.6, 0.03, seed).rates for seed in range(30)]
    intervals = [rates.manifest for rates in found]
    assert np.mean([one.mean for one in intervals]) == pytest.approx(0.6, abs=0.15)
    assert all(one.low <= one.high for one in intervals)
    # between the points of the grid on either side of 0.6
    assert sum(one.low <= 0.78 and one.high >= 0.46 for one in intervals) >= fewest(30, 0.9)
    assert np.mean([rates.false_failure.mean for rates in found]) < 0.1


TRIALS = st.lists(
    st.tuples(st.frozensets(st.sampled_from(NAMES[:6])), st.sampled_from([True, False, None])), max_size=12
)


@settings(max_examples=30)
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
    culprits, wrong = frozenset({NAMES[4]}), 0
    for seed in range(20):
        rng, bisector, pending = random.Random(seed), Bisector(NAMES, seed=seed), list[frozenset[str]]()
        while bisector.answer is None and bisector.trials < 300:
            while len(pending) < 3:
                pending.append(bisector.next_trial(pending))
            done = pending.pop(0)
            bisector.observe(done, bool(culprits <= done and rng.random() < 0.5))
        wrong += answered(bisector) != culprits
    assert wrong <= most(20, STATED)


@dataclass(frozen=True)
class Masked:
    """A search with a breaker: what it said, and how many of its trials were masked."""

    breaker: str
    culprits: frozenset[str]
    answer: frozenset[str] | None
    suspect: str
    masked: int
    trials: int


def masked_search(case: int) -> Masked:
    """Ten candidates, of which one masks most trials that it is in, and one or two others are to blame."""
    rng = random.Random(case)
    breaker, *culprits = rng.sample(NAMES[:10], 2 + case % 2)
    manifest, false_failure, breaks = rng.uniform(0.5, 1), rng.uniform(0, 0.02), rng.uniform(0.7, 1)
    bisector, masked = Bisector(NAMES[:10], seed=case), 0
    while bisector.answer is None and bisector.trials < 200:
        trial = bisector.next_trial()
        broken = breaker in trial and rng.random() < breaks
        fails = (trial.issuperset(culprits) and rng.random() < manifest) or rng.random() < false_failure
        masked += broken
        bisector.observe(trial, None if broken else bool(fails))
    rates = bisector.masking
    suspect = max(rates, key=rates.__getitem__)
    return Masked(breaker, frozenset(culprits), answered(bisector), suspect, masked, bisector.trials)


def test_masking_is_learned_and_avoided() -> None:
    """The search works around a candidate that breaks trials: it answers, and is wrong no oftener than it states."""
    found = [masked_search(case) for case in range(200)]
    wrong = [one for one in found if one.answer is not None and one.answer != one.culprits]
    assert len(wrong) <= most(200, STATED)
    assert sum(one.answer is None for one in found) <= most(200, STATED)
    blamed = Counter(name for one in found for name in (one.answer or NO_CULPRIT) - one.culprits)
    assert max(blamed.values(), default=0) <= most(200, STATED / 9)  # one of nine innocents
    assert sum(one.breaker in (one.answer or NO_CULPRIT) for one in found) <= most(200, STATED)
    often = [one for one in found if one.masked >= 4]
    assert often
    assert sum(one.suspect != one.breaker for one in often) <= most(len(often), STATED)
    # a search that does not look has the breaker in half of its trials
    assert sum(one.masked for one in found) <= sum(one.trials for one in found) / 5


def test_a_culprit_that_cannot_be_tested_stalls_the_search() -> None:
    wrong = 0
    for seed, breaker in enumerate(NAMES):
        bisector = Bisector(NAMES, seed=seed)
        while bisector.answer is None and not bisector.stalled and bisector.trials < 1000:
            trial = bisector.next_trial()
            bisector.observe(trial, None if breaker in trial else False)
        wrong += answered(bisector) not in (None, NO_CULPRIT)
        assert bisector.trials < 100
    assert wrong <= most(len(NAMES), STATED)


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


def test_two_that_are_apart_are_never_tried_nor_blamed_together() -> None:
    rng = random.Random(3)
    pairs = {frozenset(rng.sample(NAMES, 2)) for _ in range(12)}
    for culprit in ("fix-3", "fix-11"):
        bisector = Bisector(NAMES, seed=5, apart=pairs)
        while bisector.answer is None:
            trial = bisector.next_trial([frozenset({"fix-1"}), frozenset({culprit})])
            assert not any(pair <= trial for pair in pairs)
            bisector.observe(trial, culprit in trial and rng.random() < 0.6)
        assert bisector.answer.culprits == {culprit}
        assert not pairs & {culprits for culprits, _ in bisector.posterior(10_000)}


def test_a_pair_is_found_beside_two_that_are_apart() -> None:
    bisector = Bisector(NAMES, seed=2, apart={frozenset({"fix-1", "fix-2"})})
    while bisector.answer is None:
        trial = bisector.next_trial()
        bisector.observe(trial, {"fix-1", "fix-7"} <= trial)
    assert bisector.answer.culprits == {"fix-1", "fix-7"}


def test_openings_hold_every_candidate_and_as_many_as_go_together() -> None:
    assert openings(NAMES, ()) == (frozenset(NAMES),)
    one, other = openings(NAMES, {frozenset({"fix-1", "fix-2"})})
    assert (one, other) == (frozenset(NAMES) - {"fix-2"}, frozenset(NAMES) - {"fix-1"})
    assert openings(NAMES[:3], {frozenset(pair) for pair in itertools.combinations(NAMES[:3], 2)}) == tuple(
        frozenset({name}) for name in NAMES[:3]
    )
    assert openings(NAMES, {frozenset(pair) for pair in itertools.combinations(NAMES, 2)}) == ()

"""Searches over sets and over commits: answers, held to the probability they state, and the design of trials."""

import itertools
import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.base.reproducible import LEVEL
from specdebug.search.bisect import Bisector, Criterion, Masking, OrderedBisector, best, entropy, openings, pool, ranked
from specdebug.search.posterior import Belief, Nuisance, Prior
from tests.chance import most

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


def test_openings_hold_every_candidate_and_as_many_as_go_together() -> None:
    assert openings(NAMES, ()) == (frozenset(NAMES),)
    one, other = openings(NAMES, {frozenset({"fix-1", "fix-2"})})
    assert (one, other) == (frozenset(NAMES) - {"fix-2"}, frozenset(NAMES) - {"fix-1"})
    assert openings(NAMES[:3], {frozenset(pair) for pair in itertools.combinations(NAMES[:3], 2)}) == tuple(
        frozenset({name}) for name in NAMES[:3]
    )
    assert openings(NAMES, {frozenset(pair) for pair in itertools.combinations(NAMES, 2)}) == ()


COMMITS = [f"{i:04x}" for i in range(200)]
"""At a confidence of 95% no more answers are wrong than this share."""


def at(trial: frozenset[str]) -> int:
    """The index of the commit that a trial checks out; -1 for the state before the first."""
    return next((COMMITS.index(one) for one in trial), -1)


def ordered_search(culprit: int, manifest: float, false_failure: float, seed: int = 0) -> OrderedBisector:
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
    found = [ordered_search(culprit, 1.0, 0.0) for culprit in range(200)]
    assert sum(not names(bisector, culprit) for culprit, bisector in enumerate(found)) <= most(200, STATED)
    assert max(bisector.trials for bisector in found) <= 18  # halving 200 takes 8, without ever making sure


def test_flaky_bugs() -> None:
    wrong = 0
    for seed in range(60):
        rng = random.Random(1000 + seed)
        culprit = rng.randrange(-1, 200)
        wrong += not names(ordered_search(culprit, rng.uniform(0.3, 1), rng.uniform(0, 0.03), seed), culprit)
    assert wrong <= most(60, STATED)


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


N = 5
ONE, TWO = np.triu_indices(N, 1)
FIRST, SECOND = np.append(np.arange(N), ONE), np.append(np.arange(N), TWO)
SETS = (np.arange(2**N)[:, None] >> np.arange(N) & 1).astype(float)
NUISANCE = Nuisance(Prior())


def hits(members: np.ndarray) -> np.ndarray:
    return np.append(False, (members[FIRST] * members[SECOND]).astype(bool))


def belief_after(outcomes: list[tuple[int, bool]]) -> Belief:
    weights = np.append(0.2, np.full(len(FIRST), 0.8 / len(FIRST)))
    belief = Belief(weights, NUISANCE)
    for row, failed in outcomes:
        belief.observe(hits(SETS[row]), failed)
    return belief


def by_definition(belief: Belief, members: np.ndarray) -> float:
    """Mutual information of the culprit and the outcome of one trial."""
    weights, fails = belief.forecast()
    joint = np.where(hits(members), fails[1], fails[0])
    return float(entropy(joint.sum()) - weights @ entropy(joint / weights))


OUTCOMES = st.lists(st.tuples(st.integers(0, 2**N - 1), st.booleans()), max_size=6)


@settings(max_examples=25)
@given(OUTCOMES)
def test_information_of_every_set(outcomes: list[tuple[int, bool]]) -> None:
    belief = belief_after(outcomes)
    criterion = Criterion([(1.0, belief)], FIRST, SECOND, np.ones(N))
    expected = [by_definition(belief, members) for members in SETS]
    assert criterion(SETS) == pytest.approx(expected, abs=1e-9)
    flips = criterion.flips(SETS)
    for row in range(len(SETS)):
        for i in range(N):
            assert flips[row, i] == pytest.approx(expected[row ^ 1 << i], abs=1e-9)


@settings(max_examples=25)
@given(OUTCOMES)
def test_no_single_flip_improves_the_choice(outcomes: list[tuple[int, bool]]) -> None:
    belief = belief_after(outcomes)
    criterion = Criterion([(1.0, belief)], FIRST, SECOND, np.ones(N))
    chosen, bits = best(criterion, pool(belief.forecast()[0][1:], FIRST, SECOND, N))
    assert bits == pytest.approx(by_definition(belief, chosen), abs=2 * LEVEL)
    assert bits >= criterion.flips(chosen[None]).max() - LEVEL


def test_entropy() -> None:
    p = np.append(np.linspace(0, 1, 5001), [1e-7, 1e-5, 1 - 1e-6])
    inner = np.clip(p, 1e-300, 1 - 1e-16)
    exact = -(inner * np.log2(inner) + (1 - inner) * np.log2(1 - inner))
    assert entropy(p) == pytest.approx(exact, abs=2e-5)
    middle = (p > 0.01) & (p < 0.99)
    assert entropy(p[middle]) == pytest.approx(exact[middle], abs=2e-8)
    assert entropy(np.array([-1e-16, 0.0, 0.5, 1.0, 1 + 1e-15])).tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_of_equals_the_smallest_is_tried_and_then_the_one_whose_members_come_first() -> None:
    wide = 70  # more than one word of bits
    sets = np.zeros((6, wide))
    for row, members in enumerate([(3, 4), (60,), (3, 69), (3, 5, 6), (2, 69), ()]):
        sets[row, list(members)] = 1
    assert ranked(np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]), sets).tolist() == [1, 4, 0, 2, 3, 5]
    assert ranked(np.array([2.0, 1.0, 1.0, 3.0, 1.0, 2.0]), sets).tolist() == [3, 5, 0, 1, 4, 2]


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

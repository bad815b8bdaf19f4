"""The quadratic form against the definition of information, and what climbing promises."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.base.reproducible import LEVEL
from specdebug.search.bisect import Criterion, best, entropy, pool, ranked
from specdebug.search.posterior import Belief, Nuisance, Prior
from tests.chance import most

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


def test_the_choice_is_mostly_the_best_of_all_sets() -> None:
    """Climbing may end on a lower hill: then and when, and not by much."""
    shares = []
    for case in range(500):
        rng = random.Random(case)
        belief = belief_after([(rng.randrange(2**N), rng.random() < 0.5) for _ in range(rng.randrange(7))])
        criterion = Criterion([(1.0, belief)], FIRST, SECOND, np.ones(N))
        shares.append(best(criterion, pool(belief.forecast()[0][1:], FIRST, SECOND, N))[1] / criterion(SETS).max())
    assert np.mean(shares) > 0.99
    assert sum(share < 0.99 for share in shares) <= most(500, 0.05)


def test_masking_discounts() -> None:
    belief = belief_after([])
    free = Criterion([(1.0, belief)], FIRST, SECOND, np.ones(N))
    chances = np.array([0.5, 1.0, 1.0, 0.2, 1.0])
    masked = Criterion([(1.0, belief)], FIRST, SECOND, chances)
    clear = np.prod(np.where(SETS == 1, chances, 1.0), axis=1)
    assert masked(SETS) == pytest.approx(free(SETS) * clear)
    assert masked.flips(SETS)[0] == pytest.approx(free.flips(SETS)[0] * chances)


def test_running_trials_are_averaged_over() -> None:
    failed, passed = belief_after([(7, True)]), belief_after([(7, False)])
    both = Criterion([(0.25, failed), (0.75, passed)], FIRST, SECOND, np.ones(N))
    one, other = (Criterion([(1.0, b)], FIRST, SECOND, np.ones(N)) for b in (failed, passed))
    assert both(SETS) == pytest.approx(0.25 * one(SETS) + 0.75 * other(SETS))


def test_the_pool_holds_everything_and_nothing() -> None:
    rows = pool(belief_after([]).forecast()[0][1:], FIRST, SECOND, N)
    assert (rows.sum(axis=1) == N).any()
    assert (rows.sum(axis=1) == 0).any()


def test_entropy() -> None:
    p = np.append(np.linspace(0, 1, 5001), [1e-7, 1e-5, 1 - 1e-6])
    inner = np.clip(p, 1e-300, 1 - 1e-16)
    exact = -(inner * np.log2(inner) + (1 - inner) * np.log2(1 - inner))
    assert entropy(p) == pytest.approx(exact, abs=2e-5)
    middle = (p > 0.01) & (p < 0.99)
    assert entropy(p[middle]) == pytest.approx(exact[middle], abs=2e-8)
    assert entropy(np.array([-1e-16, 0.0, 0.5, 1.0, 1 + 1e-15])).tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


@given(st.floats(0, 1), st.floats(0, 1))
def test_entropy_is_concave(one: float, other: float) -> None:
    """Or information could be negative, and asking for less could tell more."""
    ends = entropy(np.array([one, other]))
    assert entropy(np.array([(one + other) / 2]))[0] >= ends.mean() - 1e-12


def test_of_equals_the_smallest_is_tried_and_then_the_one_whose_members_come_first() -> None:
    wide = 70  # more than one word of bits
    sets = np.zeros((6, wide))
    for row, members in enumerate([(3, 4), (60,), (3, 69), (3, 5, 6), (2, 69), ()]):
        sets[row, list(members)] = 1
    assert ranked(np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]), sets).tolist() == [1, 4, 0, 2, 3, 5]
    assert ranked(np.array([2.0, 1.0, 1.0, 3.0, 1.0, 2.0]), sets).tolist() == [3, 5, 0, 1, 4, 2]


def test_a_climb_that_gains_nothing_ends_at_the_smallest_of_equals() -> None:
    class Flat:
        def __call__(self, sets: np.ndarray) -> np.ndarray:
            return np.full(len(sets), 0.25)

        def flips(self, sets: np.ndarray) -> np.ndarray:
            return np.full(sets.shape, 0.25 + LEVEL / 4)  # no more than rounding

    chosen, bits = best(Flat(), SETS[::-1].copy())  # type: ignore[arg-type]
    assert not chosen.any()
    assert bits == 0.25

"""The quadratic form against the definition of information, and what climbing promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.bisect.belief import Belief
from specdebug.bisect.design import Criterion, best, entropy, pool
from specdebug.bisect.nuisance import Nuisance, Prior
from specdebug.reproducible import LEVEL

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


@settings(max_examples=25, deadline=None)
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


@settings(max_examples=25, deadline=None)
@given(OUTCOMES)
def test_no_single_flip_improves_the_choice(outcomes: list[tuple[int, bool]]) -> None:
    belief = belief_after(outcomes)
    criterion = Criterion([(1.0, belief)], FIRST, SECOND, np.ones(N))
    chosen, bits = best(criterion, pool(belief.forecast()[0][1:], FIRST, SECOND, N))
    assert bits == pytest.approx(by_definition(belief, chosen), abs=LEVEL)
    assert bits >= criterion.flips(chosen[None]).max() - LEVEL
    assert bits >= 0.9 * criterion(SETS).max()


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

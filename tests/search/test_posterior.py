"""The filter against a sum over every hypothesis, rate and course of periods."""

from itertools import pairwise, product

import numpy as np
import pytest

from specdebug.search.posterior import HIT, MISSED, NEVER, PERIODS, Belief, Nuisance, Prior

WEIGHTS = np.array([0.3, 0.5, 0.2])
TRIALS = [
    (np.array([False, True, False]), True),
    (np.array([False, True, True]), False),
    (np.array([False, False, True]), True),
]


def moved(nuisance: Nuisance, before: int, after: int) -> float:
    """Chance that one period is followed by another."""
    leave, ways = (nuisance.onset, len(PERIODS) - 1) if before == 0 else (nuisance.leave, 1)
    if before == after:
        return 1 - leave
    return leave / ways if 0 in (before, after) else 0.0


def by_hand(nuisance: Nuisance) -> np.ndarray:
    """Posterior of the three hypotheses after ``TRIALS``, from the definition."""
    size = (len(nuisance.manifest) - nuisance.steady) // len(PERIODS)
    total = np.zeros(3)
    for h in range(3):
        prior = nuisance.never if h == 0 else nuisance.guilty

        def chance(point: int, trial: int, h: int = h) -> float:
            hit, failed = TRIALS[trial]
            p = nuisance.fail[NEVER if h == 0 else HIT if hit[h] else MISSED, point]
            return float(p if failed else 1 - p)

        for point in range(nuisance.steady):
            total[h] += prior[point] * np.prod([chance(point, t) for t in range(3)])
        for rates, course in product(range(size), product(range(len(PERIODS)), repeat=3)):
            points = [nuisance.steady + period * size + rates for period in course]
            moves = [moved(nuisance, a, b) for a, b in pairwise(course)]
            total[h] += prior[points[0]] * np.prod(moves) * np.prod([chance(p, t) for t, p in enumerate(points)])
    posterior = WEIGHTS * total
    return posterior / posterior.sum()


def test_the_filter_is_exact() -> None:
    nuisance = Nuisance(Prior())
    belief = Belief(WEIGHTS, nuisance)
    for hit, failed in TRIALS:
        belief.observe(hit, failed)
    assert belief.forecast()[0] == pytest.approx(by_hand(nuisance))


@pytest.mark.parametrize("prior", [Prior(), Prior(drifting=0.5, length=4), Prior(exact=0.0, clean=0.9)])
def test_the_prior_is_a_distribution(prior: Prior) -> None:
    nuisance = Nuisance(prior)
    assert nuisance.guilty.sum() == pytest.approx(1)
    assert nuisance.never.sum() == pytest.approx(1)
    chances = [[moved(nuisance, a, b) for b in range(len(PERIODS))] for a in range(len(PERIODS))]
    assert np.sum(chances, axis=1) == pytest.approx(np.ones(len(PERIODS)))
    assert nuisance.fail.min() >= 0
    assert nuisance.fail.max() <= 1


def test_the_forecast_is_what_happens_next() -> None:
    """P(the next trial fails) now, from the posterior, is the normaliser of observing that it does."""
    nuisance = Nuisance(Prior())
    belief = Belief(WEIGHTS, nuisance)
    belief.observe(*TRIALS[0])
    weights, fails = belief.forecast()
    hit = TRIALS[1][0]
    p = np.where(hit, fails[HIT], fails[MISSED])
    after_failure, after_pass = belief.copy(), belief.copy()
    after_failure.observe(hit, True)
    after_pass.observe(hit, False)
    mixed = p.sum() * after_failure.forecast()[0] + (1 - p.sum()) * after_pass.forecast()[0]
    assert mixed == pytest.approx(weights)
    assert belief.forecast()[0] == pytest.approx(weights)  # copies are independent


def deterministic() -> Nuisance:
    """A culprit that is there shows always, and nothing else fails."""
    nuisance = Nuisance(Prior(drifting=0.0))
    nuisance.guilty[:] = 0.0
    nuisance.guilty[0] = 1.0
    return nuisance


def test_what_was_hardly_to_be_expected_is_taken_in() -> None:
    """An outcome of probability 1e-12, where sums on the grid would be nothing."""
    belief = Belief(np.array([1e-12, 1.0 - 1e-12]), deterministic())
    belief.observe(np.array([False, True]), False)
    weights, fails = belief.forecast()
    assert weights.tolist() == [1.0, 0.0]
    assert 0 < fails[HIT][0] < 0.1


def test_what_cannot_be_is_refused() -> None:
    belief = Belief(np.array([0.0, 1.0]), deterministic())
    with pytest.raises(ValueError, match="no probability"):
        belief.observe(np.array([False, True]), False)

"""Failure rates of trials, and the weight of a number of failing and clean ones.

A trial with a *fresh* seed fails at the rate of the flake. One with a seed that is *known* to fail, on a thing from
which less was taken away, fails far more often where a run is a function of its seed, and as often as any other where
it is not: which of the two holds is learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from specdebug.base.reproducible import log, logaddexp, total

SLOWER = ((1.0, 0.75), (0.6, 0.25))
"""Changes of the rate that taking away something that is not needed may bring: the factor, and its probability. A
higher rate only makes clean trials rarer."""
FALSE_FAILURES = (0.6, 50.0)
"""Beta prior of the rate at which a thing fails that should not: a mean of 1.2%."""
FRESH_FAILED, FRESH_CLEAN, KNOWN_FAILED, KNOWN_CLEAN = range(4)
"""Columns of a tally: failing and clean trials, with fresh seeds and with known ones."""
TALLY = (0, 0, 0, 0)
"""No trials."""
INCIDENTAL = 0.1
"""The rate at which a known seed fails by accident although something needed is gone; other seeds would not."""
_STRENGTH = 10
"""The number of trials that the rate that was measured before counts for."""
_LEAST_FRESH = 0.6
_FALSE_SHARE = 0.2


@dataclass(frozen=True)
class TrialRates:
    """Probabilities that a trial fails.

    Attributes:
        fresh: of something that has all it needs, with a fresh seed.
        known: the same, with a seed that has failed before.
        false: of something that lacks what the failure needs.
    """

    fresh: float
    known: float
    false: float

    def log_odds(self, tallies: np.ndarray) -> np.ndarray:
        """Return the log of how many times likelier each tally (a row) is if something needed is gone."""
        incidental = min(max(self.false, INCIDENTAL), self.known * _FALSE_SHARE)
        gone = log([self.false, 1 - self.false, incidental, 1 - incidental])
        slower: list[np.ndarray] = []
        for factor, weight in SLOWER:
            fresh, known = self.fresh * factor, self.known * factor
            slower.append(total(tallies * log([fresh, 1 - fresh, known, 1 - known])) + log(weight))
        return np.asarray(total(tallies * gone) - reduce(logaddexp, slower))


def learn(tallies: np.ndarray, fine: np.ndarray, near: np.ndarray, before: TrialRates) -> TrialRates:
    """Return rates given the tallies of candidates (rows) and what to assume where these say little: one step of
    expectation maximisation. A thing whose failure became much rarer counts as one that lacks something: so the fresh
    rate has a least value.

    ``fine`` is each candidate's probability that nothing needed is gone, ``near`` how much its rate says of the present
    one (0 to 1).
    """
    seen, weight, gone = tallies.astype(float), fine * near, 1 - fine

    def expected(chance: np.ndarray, count: np.ndarray) -> float:
        return float(total(chance * count))

    # What is tried until it fails has one failure too many.
    failed = expected(weight, np.maximum(seen[:, FRESH_FAILED] - 1, 0)) + _STRENGTH * before.fresh
    fresh = failed / (failed + expected(weight, seen[:, FRESH_CLEAN]) + _STRENGTH * (1 - before.fresh))
    failed = expected(fine, seen[:, KNOWN_FAILED]) + 1.2
    known = failed / (failed + expected(fine, seen[:, KNOWN_CLEAN]) + 0.8)
    failed = expected(gone, seen[:, FRESH_FAILED]) + FALSE_FAILURES[0]
    false = failed / (failed + expected(gone, seen[:, FRESH_CLEAN]) + FALSE_FAILURES[1])
    fresh = min(max(fresh, _LEAST_FRESH * before.fresh), 0.98)
    # A seed that has failed fails no less often than one of which nothing is known.
    known = min(max(known, fresh), 0.98)
    return TrialRates(fresh, known, min(false, fresh * _FALSE_SHARE))

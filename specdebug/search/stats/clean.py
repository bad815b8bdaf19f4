"""The number of runs that a claim "the rate is below r" needs after so many failures, if one may look after every run.

The rule accepts the claim as soon as ``needed(k)`` runs are over with no more than k failures. The probability that
runs of rate r come that far by luck is spread over k as alpha spending spreads it over interim looks (Lan and DeMets,
"Discrete sequential boundaries for clinical trials", 1983): all k together get at most the allowed error. The
probabilities are exact: between two boundaries the distribution of failures among the paths not yet accepted is
convolved with a binomial one. Higher rates only bring more failures, so r is the worst case.

Nearly the whole error goes to k = 0: a fix works or it does not, and then "no failure in n runs" needs no more runs
than a fixed n (299 for 1% at 95%). One part in 128 is kept for claims that survive a failure.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specdebug.search.stats.limits import SLACK

KEPT_BACK = 1 / 128
"""The part of the allowed error that is left after a failure; the part up to k is ``1 - KEPT_BACK / (k + 1)``."""

_FIRST_DEPTH = 16


class CleanRuns:
    """The rule for one rate, which accepts runs of it or of a higher one with probability ``error`` at most."""

    def __init__(self, rate: float, error: float) -> None:
        if not (0 < rate < 1 and 0 < error < 1):
            raise ValueError(f"rate {rate}, error {error}")
        self._rate = rate
        self._error = error
        self._boundaries: list[int] = []

    def needed(self, failures: int) -> int:
        """Return how many runs, failed ones included, must be over to accept the claim after so many failures."""
        if failures >= len(self._boundaries):
            self._boundaries = self._compute(max(_FIRST_DEPTH, 2 * failures) + 1)
        return self._boundaries[failures]

    def _compute(self, depth: int) -> list[int]:
        waiting = np.zeros(depth)  # by failures so far: probability of getting here without being accepted
        waiting[0] = 1.0
        spent, runs, boundaries = 0.0, 0, []
        for k in range(depth):
            allowed = self._error * (1 - KEPT_BACK / (k + 1)) - spent
            more = 0
            too_many = math.log(waiting[k] / allowed) - SLACK if waiting[k] > 0 else 0.0
            if too_many > 0:  # no search waits with fewer failures, so these only thin out
                more = math.ceil(too_many / -math.log1p(-self._rate))
                waiting = np.convolve(waiting, _binomial(more, self._rate, depth))[:depth]
            runs += more
            spent += float(waiting[k])
            waiting[k] = 0.0
            boundaries.append(runs)
        return boundaries


def clean_bound(runs: int, confidence: float) -> float:
    """Return the least rate that the rule would accept if none of the runs failed."""
    return 1.0 if runs == 0 else -math.expm1(math.log((1 - confidence) * (1 - KEPT_BACK)) / runs)


def _binomial(runs: int, rate: float, depth: int) -> NDArray[np.float64]:
    """Return the probabilities of 0, 1, ... failures, ``depth`` of them at most."""
    from scipy.special import gammaln, xlog1py

    k = np.arange(min(depth, runs + 1), dtype=np.float64)
    choose = gammaln(runs + 1) - gammaln(k + 1) - gammaln(runs - k + 1)
    return np.asarray(np.exp(choose + k * math.log(rate) + xlog1py(runs - k, -rate)))

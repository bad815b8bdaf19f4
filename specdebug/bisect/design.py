"""The choice of the next trial: the set expected to say most about the culprit.

The information of a set s is H(E q) - E H(q), where q is a hypothesis's own probability that the trial fails, rates
and periods integrated out (Lindley, "On a measure of the information provided by an experiment", 1956). Both terms are
quadratic in s's indicator vector, with a coefficient for every candidate (diagonal) and pair (off it), so that a whole
pool of sets, or every single change to each of them, costs one matrix product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdebug.bisect.belief import Belief
from specdebug.bisect.nuisance import Floats

Indices = NDArray[np.intp]
TINY = 1e-300
CLIMBERS = 3  # sets of the pool that local search starts from
TIE = 1e-9  # bits; less than this is no improvement, so that climbing ends


def entropy(p: Floats) -> Floats:
    """Of a coin with each probability, in bits."""
    q = np.maximum(1 - p, TINY)
    p = np.maximum(p, TINY)
    bits: Floats = -(p * np.log2(p) + q * np.log2(q))
    return bits


class Criterion:
    """Expected information of any set, averaged over beliefs (the outcomes that running trials may have).

    Args:
        beliefs: (probability, belief) of each outcome of the running trials.
        first, second: the two candidates of every culprit set but "none"; the same one twice for a single.
        log_clear: log of the chance that each candidate does not mask a trial.
    """

    def __init__(self, beliefs: list[tuple[float, Belief]], first: Indices, second: Indices, log_clear: Floats) -> None:
        n = len(log_clear)
        self._log_clear, self._masked = log_clear, bool(log_clear.any())
        self._chances: Floats = np.array([chance for chance, _ in beliefs])
        self._constant: Floats = np.empty((2, len(beliefs), 1))
        quadratic = np.zeros((2, len(beliefs), n, n))
        for b, (_, belief) in enumerate(beliefs):
            weights, fails = belief.forecast()
            terms = np.stack([fails, weights * entropy(fails / np.maximum(weights, TINY))])  # (term, missed/hit, h)
            self._constant[:, b, 0] = terms[:, 0].sum(axis=1)
            quadratic[:, b, first, second] = (terms[:, 1, 1:] - terms[:, 0, 1:]) / 2
        # a single lands on the diagonal twice, a pair once on either side
        self._quadratic: Floats = quadratic + quadratic.swapaxes(2, 3)
        self._diagonal: Floats = np.diagonal(self._quadratic, axis1=2, axis2=3)[:, :, None, :]

    def _gain(self, terms: Floats) -> Floats:
        """Information from the two terms, (2, beliefs, ...)."""
        bits = entropy(terms[0]) - terms[1]
        gains: Floats = self._chances @ bits.reshape(len(bits), -1)
        return gains.reshape(bits.shape[1:])

    def __call__(self, sets: Floats) -> Floats:
        """Expected bits of each row of ``sets`` (0 or 1), less what is likely to be lost to masking."""
        gains = self._gain(self._constant + (sets @ self._quadratic * sets).sum(axis=-1))
        return gains * np.exp(sets @ self._log_clear) if self._masked else gains

    def flips(self, sets: Floats) -> Floats:
        """Expected bits of each row with each single candidate switched the other way, (rows, candidates)."""
        product = sets @ self._quadratic
        now = self._constant + (product * sets).sum(axis=-1)
        sign = 1 - 2 * sets
        gains = self._gain(now[..., None] + 2 * sign * product + self._diagonal)
        if self._masked:
            gains = gains * np.exp((sets @ self._log_clear)[:, None] + sign * self._log_clear)
        return gains


def pool(weights: Floats, first: Indices, second: Indices, n: int) -> Floats:
    """Sets worth a look, as rows: along the order of suspicion, lone sets and unions of the leading hypotheses, and
    the complements of all of these."""
    suspicion = np.bincount(first, weights, n) + np.bincount(second, weights, n)
    rank = np.empty(n, dtype=np.intp)
    rank[np.argsort(-suspicion, kind="stable")] = np.arange(n)
    prefixes = rank < np.arange(1, n + 1)[:, None]
    leaders = np.argsort(-weights, kind="stable")[:n]
    rows = np.arange(len(leaders))
    lone = np.zeros((len(leaders), n), dtype=bool)
    lone[rows, first[leaders]] = True
    lone[rows, second[leaders]] = True
    sets = np.concatenate([prefixes, lone, np.logical_or.accumulate(lone, axis=0), rank % 2 == np.arange(2)[:, None]])
    return np.concatenate([sets, ~sets]).astype(np.float64)


def best(criterion: Criterion, sets: Floats) -> tuple[Floats, float]:
    """The best set found by climbing from the best rows of ``sets`` in single flips, and its expected bits."""
    gains = criterion(sets)
    starts = np.argsort(-gains, kind="stable")[:CLIMBERS]
    sets, gains = sets[starts], gains[starts]
    rows = np.arange(len(sets))
    while True:
        options = criterion.flips(sets)
        chosen = options.argmax(axis=1)
        reached = options[rows, chosen]
        better = reached > gains + TIE
        if not better.any():
            break
        sets[rows, chosen] = np.where(better, 1 - sets[rows, chosen], sets[rows, chosen])
        gains = np.where(better, reached, gains)
    winner = int(gains.argmax())
    return sets[winner], float(gains[winner])

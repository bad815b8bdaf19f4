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
CLIMBERS = 4  # sets of the pool that local search starts from
TIE = 1e-9  # bits; less than this is no improvement, so that rounding decides nothing


def entropy(p: Floats) -> Floats:
    """Of a coin with each probability, in bits."""
    p = np.clip(p, 1e-15, 1 - 1e-15)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


class Criterion:
    """Expected information of any set, averaged over beliefs (the outcomes that running trials may have).

    Args:
        beliefs: (probability, belief) of each outcome of the running trials.
        first, second: the two candidates of every culprit set but "none"; the same one twice for a single.
        log_clear: log of the chance that each candidate does not mask a trial.
    """

    def __init__(self, beliefs: list[tuple[float, Belief]], first: Indices, second: Indices, log_clear: Floats) -> None:
        n = len(log_clear)
        self._log_clear = log_clear
        self._chances: Floats = np.array([chance for chance, _ in beliefs])
        self._constant: Floats = np.empty((2, len(beliefs), 1))
        self._quadratic: Floats = np.zeros((2, len(beliefs), n, n))
        for b, (_, belief) in enumerate(beliefs):
            weights, fails = belief.forecast()
            noise = weights * entropy(fails / np.maximum(weights, 1e-300))
            for term, (missed, hit) in enumerate((fails, noise)):
                self._constant[term, b] = missed.sum()
                change = (hit - missed)[1:] / 2
                # a single lands on the diagonal twice, a pair once on either side
                np.add.at(self._quadratic[term, b], (first, second), change)
                np.add.at(self._quadratic[term, b], (second, first), change)
        self._diagonal: Floats = np.diagonal(self._quadratic, axis1=2, axis2=3).copy()[:, :, None, :]

    def _gain(self, terms: Floats) -> Floats:
        """Information from the two terms, (2, beliefs, ...)."""
        return np.tensordot(self._chances, entropy(terms[0]) - terms[1], axes=1)

    def __call__(self, sets: Floats) -> Floats:
        """Expected bits of each row of ``sets`` (0 or 1), less what is likely to be lost to masking."""
        terms = self._constant + np.einsum("tbsi,si->tbs", sets @ self._quadratic, sets)
        gains: Floats = self._gain(terms) * np.exp(sets @ self._log_clear)
        return gains

    def flips(self, sets: Floats) -> Floats:
        """Expected bits of each row with each single candidate switched the other way, (rows, candidates)."""
        product = sets @ self._quadratic
        now = self._constant + np.einsum("tbsi,si->tbs", product, sets)
        sign = 1 - 2 * sets
        terms = now[..., None] + 2 * sign * product + self._diagonal
        gains: Floats = self._gain(terms) * np.exp((sets @ self._log_clear)[:, None] + sign * self._log_clear)
        return gains


def pool(weights: Floats, first: Indices, second: Indices, n: int) -> Floats:
    """Sets worth a look, as rows: along the order of suspicion, unions and lone sets of the leading hypotheses, and
    the complements of all of these."""
    suspicion = np.bincount(first, weights, n) + np.bincount(second, weights, n) * (first != second).any()
    order = np.argsort(-suspicion, kind="stable")
    rank = np.empty(n, dtype=np.intp)
    rank[order] = np.arange(n)
    prefixes = rank[None, :] < np.arange(1, n + 1)[:, None]
    leaders = np.argsort(-weights, kind="stable")[:n]
    lone = np.zeros((len(leaders), n), dtype=bool)
    lone[np.arange(len(leaders)), first[leaders]] = True
    lone[np.arange(len(leaders)), second[leaders]] = True
    unions = np.logical_or.accumulate(lone, axis=0)
    every_other = rank[None, :] % 2 == np.arange(2)[:, None]
    rows = np.concatenate([prefixes, np.eye(n, dtype=bool), lone, unions, every_other])
    return np.concatenate([rows, ~rows]).astype(np.float64)


def best(criterion: Criterion, sets: Floats) -> tuple[Floats, float]:
    """The best set found by climbing from the best rows of ``sets`` in single flips, and its expected bits."""
    gains = criterion(sets)
    starts = np.argsort(-np.round(gains, 9), kind="stable")[:CLIMBERS]
    sets, gains = sets[starts], gains[starts]
    active = np.arange(len(sets))
    while len(active):
        options = criterion.flips(sets[active])
        chosen = np.argmax(np.round(options, 9), axis=1)
        reached = options[np.arange(len(active)), chosen]
        better = reached > gains[active] + TIE
        active, chosen = active[better], chosen[better]
        sets[active, chosen] = 1 - sets[active, chosen]
        gains[active] = reached[better]
    winner = int(np.argmax(np.round(gains, 9)))
    return sets[winner], float(gains[winner])

"""Choose the next trial: the set expected to say most about the culprit.

The information of a set s is H(E q) - E H(q), where q is a hypothesis's own probability that the trial fails, rates
and periods integrated out (Lindley, "On a measure of the information provided by an experiment", 1956). Both terms are
quadratic in s's indicator vector, with a coefficient for every candidate (diagonal) and pair (off it), so that a whole
pool of sets, or every single change to each of them, costs one matrix product. The coefficients lie on a grid and the
vectors hold 0 and 1, so that these products are exact whichever BLAS computes them.

**Ties.** Sets are compared by their expected bits in whole ``LEVEL`` (``base.reproducible``). Of equals the one
with the fewest members is taken, and of these the one whose members come first in the order of the candidates, which
the seed draws. A climb takes, of equally good flips, one that switches a candidate off, and then the first candidate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdebug.base.reproducible import LEVEL, levels, log2, on_grid, product, total
from specdebug.search.bisect.belief import Belief, Bools
from specdebug.search.bisect.nuisance import Floats

Indices = NDArray[np.intp]
TINY = 1e-300
PIECES = 2**16  # of the straight lines that the entropy is made of
CLIMBERS = 3  # sets of the pool that local search starts from


def _entropy_table() -> Floats:
    p = np.arange(1, PIECES) / PIECES
    inner = -(p * log2(p) + (1 - p) * log2(1 - p))
    return np.concatenate([[0.0], inner, [0.0, 0.0]])


_ENTROPY = _entropy_table()
_RISE = np.diff(_ENTROPY)


def entropy(p: Floats) -> Floats:
    """Return the entropy, in bits, of a coin with each probability (0 to 1, but for rounding): a straight line between
    neighbours of a table, 8e-6 too low where it is worst (near 0 and 1). It is concave, too, so expected information is
    not negative."""
    at = np.minimum(np.maximum(p, 0.0), 1.0)
    at *= float(PIECES)
    piece = at.astype(np.intp)
    at -= piece
    at *= _RISE.take(piece)
    at += _ENTROPY.take(piece)
    return at


class Criterion:
    """Expected information of any set, averaged over the beliefs, with their probabilities, of the outcomes that
    running trials may have. ``first`` and ``second`` are the two candidates of every culprit set but "none", the same
    one twice for a single; ``clear`` is each candidate's chance, above 0, not to mask a trial."""

    def __init__(self, beliefs: list[tuple[float, Belief]], first: Indices, second: Indices, clear: Floats) -> None:
        n = len(clear)
        self._clear, self._masked = clear, bool((clear < 1).any())
        self._chances: Floats = np.array([chance for chance, _ in beliefs])
        self._constant: Floats = np.empty((2, len(beliefs), 1))
        quadratic = np.zeros((2, len(beliefs), n, n))
        for b, (_, belief) in enumerate(beliefs):
            weights, fails = belief.forecast()
            of_each = weights * entropy(fails / np.maximum(weights, TINY))
            terms = on_grid(np.stack([fails, of_each]))  # (term, missed/hit, h); the sum over h is at most 1
            self._constant[:, b, 0] = terms[:, 0].sum(axis=1)
            quadratic[:, b, first, second] = (terms[:, 1, 1:] - terms[:, 0, 1:]) / 2
        # a single lands on the diagonal twice, a pair once on either side
        self._quadratic: Floats = quadratic + quadratic.swapaxes(2, 3)
        self._diagonal: Floats = np.diagonal(self._quadratic, axis1=2, axis2=3)[:, :, None, :]

    def _gain(self, terms: Floats) -> Floats:
        """Return the information from the two terms, (2, beliefs, ...)."""
        bits = entropy(terms[0]) - terms[1]
        if len(bits) == 1:  # nothing is running
            return np.asarray(bits[0])
        bits *= self._chances.reshape(-1, *[1] * (bits.ndim - 1))
        return total(bits, axis=0)

    def __call__(self, sets: Floats) -> Floats:
        """Return the expected bits of each row of ``sets`` (0 or 1), less what is likely to be lost to masking."""
        gains = self._gain(self._constant + (sets @ self._quadratic * sets).sum(axis=-1))
        return gains * self._chance_clear(sets) if self._masked else gains

    def flips(self, sets: Floats) -> Floats:
        """Return the expected bits of each row with any one candidate switched the other way, (rows, candidates)."""
        product = sets @ self._quadratic
        now = self._constant + (product * sets).sum(axis=-1)
        sign = 1 - 2 * sets
        gains = self._gain(now[..., None] + 2 * sign * product + self._diagonal)
        if self._masked:
            factors = np.where(sets == 1, 1 / self._clear, self._clear)
            gains = gains * (self._chance_clear(sets)[:, None] * factors)
        return gains

    def _chance_clear(self, sets: Floats) -> Floats:
        """Return each row's chance that nothing in it masks the trial."""
        return product(np.where(sets == 1, self._clear, 1.0))


def pool(weights: Floats, first: Indices, second: Indices, n: int) -> Floats:
    """Return sets worth a look, as rows: along the order of suspicion, lone sets and unions of the leading hypotheses,
    and the complements of all of these. Of equal suspicion, the first candidate or hypothesis leads."""
    known = levels(weights)
    suspicion = np.bincount(first, known, n) + np.bincount(second, known, n)  # of whole numbers: exact
    rank = np.empty(n, dtype=np.intp)
    rank[np.argsort(-suspicion, kind="stable")] = np.arange(n)
    prefixes = rank < np.arange(1, n + 1)[:, None]
    leaders = np.argsort(-known, kind="stable")[:n]
    rows = np.arange(len(leaders))
    lone = np.zeros((len(leaders), n), dtype=bool)
    lone[rows, first[leaders]] = True
    lone[rows, second[leaders]] = True
    sets = np.concatenate([prefixes, lone, np.logical_or.accumulate(lone, axis=0), rank % 2 == np.arange(2)[:, None]])
    return np.concatenate([sets, ~sets]).astype(np.float64)


def ranked(scores: Floats, sets: Floats) -> Indices:
    """Return the rows of ``sets`` from the best to the worst by their scores, ties broken as stated above."""
    absent = np.packbits(sets == 0, axis=1)  # as a number it is smaller the earlier members come
    by_size = sets.sum(axis=1) - scores * (sets.shape[1] + 1)  # whole numbers
    return np.lexsort((*absent.T[::-1], by_size))


def kept_apart(sets: Floats, apart: Bools) -> Floats:
    """Return sets of which none holds two candidates that are ``apart``: of two the earlier stays, and in a second row
    for each set the later."""
    rows = []
    for order in (range(len(apart)), range(len(apart) - 1, -1, -1)):
        left = sets.copy()
        for candidate in order:
            left[np.ix_(left[:, candidate] == 1, apart[candidate])] = 0
        rows.append(left)
    return np.concatenate(rows)


def best(criterion: Criterion, sets: Floats, apart: Bools | None = None) -> tuple[Floats, float]:
    """Return the best set found by climbing from the best rows of ``sets`` in single flips, and its expected bits. No
    set is tried that holds two candidates that are ``apart``."""
    if apart is not None:
        sets = kept_apart(sets, apart)
    scores = levels(criterion(sets))
    starts = ranked(scores, sets)[:CLIMBERS]
    sets, scores = sets[starts], scores[starts]
    rows = np.arange(len(sets))
    while True:
        options = levels(criterion.flips(sets))
        if apart is not None:
            options = np.where((sets == 0) & (sets @ apart > 0), -1, options)
        chosen = (2 * options + sets).argmax(axis=1)
        reached = options[rows, chosen]
        better = reached > scores
        if not better.any():
            break
        sets[rows, chosen] = np.where(better, 1 - sets[rows, chosen], sets[rows, chosen])
        scores = np.where(better, reached, scores)
    highest = np.flatnonzero(scores == scores.max())
    winner = highest[0] if len(highest) == 1 else ranked(scores, sets)[0]
    return sets[winner], float(scores[winner]) * LEVEL

"""Searches for what makes a flaky failure appear: one culprit or two among a set, or the commit that brought it in.

**Ties.** Sets are compared by their expected bits in whole ``LEVEL`` (``base.reproducible``). Of equals the one with
the fewest members is taken, and of these the one whose members come first in the order of the candidates, which the
seed draws. A climb takes, of equally good flips, one that switches a candidate off, and then the first candidate."""

import hashlib
import itertools
from collections.abc import Collection, Sequence
from itertools import accumulate, repeat
from operator import mul

import numpy as np
from numpy.typing import NDArray

from specdebug.base.reproducible import LEVEL, levels, log2, on_grid, product, total
from specdebug.search.posterior import BayesianSearch, Belief, Bools, Floats, Prior, Trial

Indices = NDArray[np.intp]
TINY = 1e-300
PIECES = 2**16  # of the straight lines that the entropy is made of
CLIMBERS = 3  # sets of the pool that local search starts from


_P = np.arange(1, PIECES) / PIECES
_ENTROPY = np.concatenate([[0.0], -(_P * log2(_P) + (1 - _P) * log2(1 - _P)), [0.0, 0.0]])
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
    one twice for a single; ``clear`` is each candidate's chance, above 0, not to mask a trial.

    The information of a set s is H(E q) - E H(q), where q is a hypothesis's own probability that the trial fails,
    rates and periods integrated out (Lindley, "On a measure of the information provided by an experiment", 1956). Both
    terms are quadratic in s's indicator vector, with a coefficient for every candidate (diagonal) and pair (off it), so
    that a whole pool of sets, or every single change to each of them, costs one matrix product. The coefficients lie on
    a grid and the vectors hold 0 and 1, so that these products are exact whichever BLAS computes them.
    """

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
        products = sets @ self._quadratic
        now = self._constant + (products * sets).sum(axis=-1)
        sign = 1 - 2 * sets
        gains = self._gain(now[..., None] + 2 * sign * products + self._diagonal)
        if self._masked:
            factors = np.where(sets == 1, 1 / self._clear, self._clear)
            gains = gains * (self._chance_clear(sets)[:, None] * factors)
        return gains

    def _chance_clear(self, sets: Floats) -> Floats:
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


SEEN, NOT_SEEN = 0.05, 0.3  # Beta counts: a candidate is innocent of masking until it has been in a masked trial
ROUNDS = 10


class Masking:
    """The masking rate of each of ``size`` candidates, all 0 as long as no trial was masked.

    Every candidate of the set, and a background that is always there, masks a trial independently (noisy or: Pearl,
    "Probabilistic Reasoning in Intelligent Systems", 1988). The rates come from expectation maximisation over all
    trials so far with Beta(0.05, 0.3) counts.
    """

    def __init__(self, size: int) -> None:
        self._sets: list[Bools] = []
        self._masked: list[bool] = []
        self._size = size
        self._rates: Floats = np.full(size + 1, SEEN / (SEEN + NOT_SEEN))

    def observe(self, members: Bools, masked: bool) -> None:
        self._sets.append(np.append(members, True))
        self._masked.append(masked)
        if not any(self._masked):
            return
        sets = np.array(self._sets)
        blamed, trials = sets[self._masked].T, sets.sum(axis=0) + (SEEN + NOT_SEEN)
        for _ in range(ROUNDS):
            chance = 1 - product(np.where(blamed, 1 - self._rates[:, None], 1.0), axis=0)
            self._rates = (SEEN + self._rates * total(np.where(blamed, 1 / chance, 0.0))) / trials

    @property
    def rates(self) -> Floats:
        return self._rates[:-1] if any(self._masked) else np.zeros(self._size)

    @property
    def clear(self) -> Floats:
        """Each candidate's chance not to mask, above 0; the product over a set is that of the set."""
        return np.asarray(1 - self.rates)


MOST_OPENINGS = 4


class Bisector(BayesianSearch):
    """Bayesian search over "none", every single and every pair of candidates; a trial is the set switched on.

    There is an answer at the posterior probability ``confidence``. ``max_culprits`` of 1 leaves pairs out. ``seed``
    draws the order of the candidates, the last of what ties are broken by (``design``). No trial holds two that are
    ``apart``, so that they are no culprits together.

    Raises ValueError for no candidates or two of the same name, a confidence outside (0.5, 1), max_culprits not 1 or 2.
    """

    def __init__(
        self,
        candidates: Sequence[str],
        *,
        confidence: float = 0.95,
        max_culprits: int = 2,
        seed: int = 0,
        prior: Prior | None = None,
        apart: Collection[frozenset[str]] = (),
    ) -> None:
        if max_culprits not in (1, 2):
            raise ValueError(f"max_culprits is 1 or 2, not {max_culprits}")
        prior = prior or Prior()
        n = len(candidates)
        # in an order that the seed draws, whichever generators Python and numpy come with
        keys = [hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest() for position in range(n)]
        names = [candidates[i] for i in sorted(range(n), key=keys.__getitem__)]
        self._index = {name: i for i, name in enumerate(names)}
        singles = np.arange(n, dtype=np.intp)
        self._first, self._second = singles, singles
        blame = np.full(n, 1 / max(n, 1))
        self._apart: Bools = np.zeros((n, n), dtype=bool)
        for pair in apart:
            if not pair <= self._index.keys():  # one of them is left out
                continue
            here, there = (self._index[name] for name in pair)
            self._apart[here, there] = self._apart[there, here] = True
        one, two = np.nonzero(np.triu(~self._apart, 1))
        if max_culprits == 2 and len(one):
            self._first, self._second = np.append(singles, one), np.append(singles, two)
            blame = np.append(blame * (1 - prior.pair), np.full(len(one), prior.pair / len(one)))
        super().__init__(names, blame, prior, confidence)
        self._masking = Masking(n)

    @property
    def masking(self) -> dict[str, float]:
        return dict(zip(self._names, self._masking.rates.tolist(), strict=True))

    def _design(self, beliefs: list[tuple[float, Belief]], clear: bool) -> tuple[frozenset[str], float]:
        n = len(self._names)
        criterion = Criterion(beliefs, self._first, self._second, np.ones(n) if clear else self._masking.clear)
        weights = self._belief.forecast()[0][1:]
        sets = pool(weights, self._first, self._second, n)
        members, bits = best(criterion, sets, self._apart) if self._apart.any() else best(criterion, sets)
        return frozenset(self._names[i] for i in np.flatnonzero(members)), bits

    def _learn_masking(self, trial: frozenset[str], masked: bool) -> None:
        self._masking.observe(self._members(trial), masked)

    def _members(self, trial: frozenset[str]) -> Bools:
        if unknown := sorted(trial - self._index.keys()):
            raise ValueError(f"{unknown[0]!r} is none of the candidates")
        members = np.zeros(len(self._names), dtype=bool)
        members[[self._index[name] for name in trial]] = True
        return members

    def _hits(self, trial: Trial) -> Bools:
        members = self._members(trial)
        return np.append(False, members[self._first] & members[self._second])

    def _culprits(self, hypothesis: int) -> frozenset[str]:
        if hypothesis == 0:
            return frozenset()
        return frozenset({self._names[self._first[hypothesis - 1]], self._names[self._second[hypothesis - 1]]})


def openings(names: Sequence[str], apart: Collection[frozenset[str]]) -> tuple[frozenset[str], ...]:
    """Return the fewest sets, as large as can be, that hold every candidate and no two that are ``apart``; none if that
    takes more than ``MOST_OPENINGS``, when a search by single candidates is as good."""
    sets: list[set[str]] = []
    for name in names:
        fits = [each for each in sets if not any(frozenset((name, other)) in apart for other in each)]
        for each in fits[:1] if fits else [set[str]()]:
            sets += [] if fits else [each]
            each.add(name)
    for each, name in itertools.product(sets, names):
        if not any(frozenset((name, other)) in apart for other in each):
            each.add(name)
    return tuple(map(frozenset, sets)) if len(sets) <= MOST_OPENINGS else ()


NEIGHBOUR = 0.6065  # what a commit that does not build says of the one beside it
REACH = 64  # commits; further away it says nothing
MASKED, CLEAR = 0.1, 0.3  # Beta counts of an untried commit's chance to be untestable


class OrderedBisector(BayesianSearch):
    """Bayesian search over "none" and every candidate; a trial checks out the one that it holds, or with none the state
    before the first, and can show any culprit up to that. Of trials that are expected to say equally much (to within
    ``base.reproducible.LEVEL``) the earliest is taken.

    Thousands of candidates are fine, the oldest first. The prior's ``pair`` is of no use here. Raises ValueError for no
    candidates or two of the same name, or a confidence outside (0.5, 1).
    """

    def __init__(self, candidates: Sequence[str], *, confidence: float = 0.95, prior: Prior | None = None) -> None:
        n = len(candidates)
        super().__init__(candidates, np.full(n, 1 / max(n, 1)), prior or Prior(), confidence)
        self._position = {name: position for position, name in enumerate(candidates, 1)}
        self._tried = np.zeros(n + 1)  # by position, nothing first: weight of the trials nearby, and of the masked ones
        self._masked = np.zeros(n + 1)
        self._near: Floats = np.array([*accumulate(repeat(NEIGHBOUR, REACH), mul, initial=1.0)])

    @property
    def masking(self) -> Floats:
        """Return each trial's chance, that of nothing first, to be untestable; 0 as long as none was."""
        if not self._masked.any():
            return self._masked
        rates: Floats = (self._masked + MASKED) / (self._tried + MASKED + CLEAR)
        return rates

    def _design(self, beliefs: list[tuple[float, Belief]], clear: bool) -> tuple[Trial, float]:
        bits = np.zeros(len(self._names) + 1)
        for chance, belief in beliefs:
            weights, fails = belief.forecast()
            of_each = weights * entropy(fails / np.maximum(weights, TINY))
            terms = on_grid(np.stack([fails, of_each]))  # so that the sums below are exact
            # from one checkout to the next, one hypothesis more can show; the first step is none's, which never does
            steps = terms[:, 1] - terms[:, 0]
            steps[:, 0] = terms[:, 0].sum(axis=1)
            expected, noise = steps.cumsum(axis=1)
            bits += chance * (entropy(expected) - noise)
        if not clear:
            bits *= 1 - self.masking
        bits = levels(bits)
        chosen = int(np.argmax(bits))
        return frozenset(self._names[chosen - 1 : chosen]) if chosen else frozenset(), float(bits[chosen]) * LEVEL

    def _learn_masking(self, trial: Trial, masked: bool) -> None:
        position = self._at(trial)
        begin, end = max(position - REACH, 0), min(position + 1 + REACH, len(self._tried))
        near = self._near[np.abs(np.arange(begin, end) - position)]
        self._tried[begin:end] += near
        if masked:
            self._masked[begin:end] += near

    def _at(self, trial: Trial) -> int:
        """Return the position of what a trial checks out: 0 for the state before the first."""
        if len(trial) > 1 or trial - self._position.keys():
            raise ValueError(f"{sorted(trial)} is no trial: one candidate, or none, is checked out")
        return next((self._position[name] for name in trial), 0)

    def _hits(self, trial: Trial) -> Bools:
        return np.append(False, np.arange(len(self._names)) < self._at(trial))

    def _culprits(self, hypothesis: int) -> frozenset[str]:
        return frozenset({self._names[hypothesis - 1]}) if hypothesis else frozenset()

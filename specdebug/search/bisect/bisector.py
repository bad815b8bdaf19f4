"""Search for one culprit, or two that only fail together, among candidates that can be switched on in any set."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Sequence

import numpy as np

from specdebug.search.bisect.belief import Belief, Bools
from specdebug.search.bisect.design import Criterion, best, pool
from specdebug.search.bisect.masking import Masking
from specdebug.search.bisect.nuisance import Prior
from specdebug.search.bisect.search import BayesianSearch

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
        names = _drawn(candidates, seed)
        self._index = {name: i for i, name in enumerate(names)}
        singles = np.arange(n, dtype=np.intp)
        self._first, self._second = singles, singles
        blame = np.full(n, 1 / max(n, 1))
        self._apart: Bools = np.zeros((n, n), dtype=bool)
        for pair in apart:
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
        """Return each candidate's estimated chance that switching it on makes a trial untestable."""
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

    def _hits(self, trial: frozenset[str]) -> Bools:
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


def _drawn(candidates: Sequence[str], seed: int) -> list[str]:
    """Return the candidates in an order that the seed draws, whichever generators Python and numpy come with."""

    def drawn(position: int) -> bytes:
        return hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()

    return [candidates[i] for i in sorted(range(len(candidates)), key=drawn)]

"""Search for the commit that brought a bug in: candidates in order, and a trial shows all up to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import mul

import numpy as np

from specdebug.base.reproducible import LEVEL, levels, on_grid
from specdebug.search.bisect.belief import Belief, Bools
from specdebug.search.bisect.design import TINY, entropy
from specdebug.search.bisect.nuisance import Floats, Prior
from specdebug.search.bisect.search import BayesianSearch, Trial

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

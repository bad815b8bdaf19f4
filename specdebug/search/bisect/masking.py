"""Learn which candidates make a trial untestable.

Every candidate of the set, and a background that is always there, masks a trial independently (noisy or: Pearl,
"Probabilistic Reasoning in Intelligent Systems", 1988). The rates come from expectation maximisation over all trials
so far with Beta(0.05, 0.3) counts.
"""

from __future__ import annotations

import numpy as np

from specdebug.base.reproducible import product, total
from specdebug.search.bisect.belief import Bools
from specdebug.search.bisect.nuisance import Floats

SEEN, NOT_SEEN = 0.05, 0.3  # Beta counts: a candidate is innocent of masking until it has been in a masked trial
ROUNDS = 10


class Masking:
    """The masking rate of each of ``size`` candidates, all 0 as long as no trial was masked."""

    def __init__(self, size: int) -> None:
        self._sets: list[Bools] = []
        self._masked: list[bool] = []
        self._size = size
        self._rates: Floats = np.full(size + 1, SEEN / (SEEN + NOT_SEEN))

    def observe(self, members: Bools, masked: bool) -> None:
        """Take in one trial over ``members``."""
        self._sets.append(np.append(members, True))
        self._masked.append(masked)
        if any(self._masked):
            self._fit()

    def _fit(self) -> None:
        sets = np.array(self._sets)
        blamed = sets[self._masked].T
        trials = sets.sum(axis=0) + (SEEN + NOT_SEEN)
        rates = self._rates
        for _ in range(ROUNDS):
            chance = 1 - product(np.where(blamed, 1 - rates[:, None], 1.0), axis=0)
            rates = (SEEN + rates * total(np.where(blamed, 1 / chance, 0.0))) / trials
        self._rates = rates

    @property
    def rates(self) -> Floats:
        return self._rates[:-1] if any(self._masked) else np.zeros(self._size)

    @property
    def clear(self) -> Floats:
        """Return each candidate's chance not to mask, above 0; the product over a set is that of the set."""
        clear: Floats = 1 - self.rates
        return clear

"""The joint posterior of hypothesis, rates and period, updated one trial at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdebug.bisect.nuisance import HIT, NEVER, Floats, Nuisance
from specdebug.bisect.results import Rate, Rates

Bools = NDArray[np.bool_]


class Belief:
    """A forward filter over (period, hypothesis, rates). Hypothesis 0 is "no culprit".

    Args:
        weights: prior of every hypothesis, summing to 1.
        nuisance: the grid of rates and periods.
    """

    def __init__(self, weights: Floats, nuisance: Nuisance) -> None:
        self._nuisance = nuisance
        self._joint: Floats = weights[None, :, None] * nuisance.weights[0][:, None, :]
        self._joint[:, 0] = weights[0] * nuisance.weights[1]
        self._fail = nuisance.fail
        self._forecast: tuple[Floats, Floats] | None = None

    def copy(self) -> Belief:
        """An independent copy."""
        twin = object.__new__(Belief)
        twin.__dict__ = self.__dict__ | {"_joint": self._joint.copy()}
        return twin

    def observe(self, hit: Bools, failed: bool) -> None:
        """Take in one verdict; ``hit[h]`` says whether the trial would show hypothesis ``h``."""
        table = self._fail if failed else 1 - self._fail
        kind = hit.astype(np.intp)
        kind[0] = NEVER
        joint = self._joint * table[:, kind]
        joint /= joint.sum()
        self._joint = (self._nuisance.step @ joint.reshape(len(joint), -1)).reshape(joint.shape)
        self._forecast = None

    def forecast(self) -> tuple[Floats, Floats]:
        """Of each hypothesis: its probability, and the probability of (it and the next trial fails), as rows for a
        trial that misses it and for one that hits it."""
        if self._forecast is None:
            fails = np.matmul(self._joint, self._fail.transpose(0, 2, 1)).sum(axis=0)
            both = np.ascontiguousarray(fails[:, : HIT + 1].T)
            both[:, 0] = fails[0, NEVER]
            self._forecast = self._joint.sum(axis=(0, 2)), both
        return self._forecast

    def rates(self) -> Rates:
        """Posterior of the two rates."""
        n = self._nuisance
        guilty = self._joint[:, 1:].sum(axis=(0, 1))
        never = self._joint[:, 0].sum(axis=0)
        return Rates(
            manifest=_summary(n.manifest, guilty),
            false_failure=_summary(np.append(n.false_failure, n.background), np.append(guilty, never)),
        )


def _summary(values: Floats, weights: Floats) -> Rate:
    order = np.argsort(values, kind="stable")
    values, mass = values[order], weights[order]
    total = mass.cumsum()
    low, high = (min(int(np.searchsorted(total, q * total[-1])), len(values) - 1) for q in (0.05, 0.95))
    return Rate(float(values @ mass / total[-1]), float(values[low]), float(values[high]))

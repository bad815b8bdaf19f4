"""The joint posterior of hypothesis, rates and period, updated one trial at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdebug.bisect.nuisance import HIT, NEVER, PERIODS, Floats, Nuisance
from specdebug.bisect.results import Rate, Rates

Bools = NDArray[np.bool_]


class Belief:
    """A forward filter over hypotheses (rows) and points of the nuisance (columns). Hypothesis 0 is "no culprit".

    Args:
        weights: prior of every hypothesis, summing to 1.
        nuisance: rates and periods.
    """

    def __init__(self, weights: Floats, nuisance: Nuisance) -> None:
        self._nuisance = nuisance
        self._joint: Floats = np.outer(weights, nuisance.guilty)
        self._joint[0] = weights[0] * nuisance.never
        self._likelihood: Floats = np.stack([1 - nuisance.fail, nuisance.fail])
        self._forecast: tuple[Floats, Floats] | None = None

    def copy(self) -> Belief:
        """An independent copy."""
        twin = object.__new__(Belief)
        twin.__dict__ = self.__dict__ | {"_joint": self._joint.copy()}
        return twin

    def observe(self, hit: Bools, failed: bool) -> None:
        """Take in one verdict; ``hit[h]`` says whether the trial would show hypothesis ``h``."""
        kind = hit.astype(np.intp)
        kind[0] = NEVER
        joint = self._joint
        joint *= self._likelihood[int(failed)].take(kind, axis=0)
        joint *= 1 / joint.sum()
        drifting = joint[:, self._nuisance.steady :]
        drifting[:] = (self._nuisance.step @ drifting.reshape(len(joint), len(PERIODS), -1)).reshape(drifting.shape)
        self._forecast = None

    def forecast(self) -> tuple[Floats, Floats]:
        """Of each hypothesis: its probability, and the probability of (it and the next trial fails), as rows for a
        trial that misses it and for one that hits it."""
        if self._forecast is None:
            fails = self._nuisance.fail @ self._joint.T
            fails[:, 0] = fails[NEVER, 0]
            self._forecast = self._joint.sum(axis=1), fails[: HIT + 1]
        return self._forecast

    def rates(self) -> Rates:
        """Posterior of the two rates."""
        n = self._nuisance
        guilty, never = self._joint[1:].sum(axis=0), self._joint[0]
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

"""The joint posterior of hypothesis, rates and period, updated one trial at a time."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdebug.base.reproducible import GRID, on_grid, total
from specdebug.search.bisect.nuisance import HIT, MISSED, NEVER, RATE_GRID, Floats, Nuisance

Bools = NDArray[np.bool_]

JOINT_GRID = GRID / RATE_GRID
"""Probabilities are rounded to multiples of this before they are multiplied by rates and added up."""
SMALL = 2.0**-12
"""A joint posterior with a smaller sum is scaled up first, or its grid would be too coarse."""


@dataclass(frozen=True)
class Rate:
    """Posterior mean and central 90% interval of a rate."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Rates:
    """The rate at which the bug shows when it can, if there is a culprit, and at which a trial fails without it."""

    manifest: Rate
    false_failure: Rate


class Belief:
    """A forward filter over points of the nuisance (rows) and hypotheses (columns). Hypothesis 0 is "no culprit".

    ``weights`` is the prior of every hypothesis, summing to 1. The same observations give the same bits on any
    processor: every step is one operation an element, or a product of matrices on grids, which is exact.
    """

    def __init__(self, weights: Floats, nuisance: Nuisance) -> None:
        self._nuisance = nuisance
        self._likelihood: Floats = np.stack([1 - nuisance.fail, nuisance.fail])
        # sums of columns, and sums weighted with the chance to fail of a trial that misses the culprit or holds it
        self._sums: Floats = np.stack([np.ones_like(nuisance.guilty), nuisance.fail[MISSED], nuisance.fail[HIT]])
        self._sums_of_none: Floats = np.stack([self._sums[0], nuisance.fail[NEVER], nuisance.fail[NEVER]])
        self._joint: Floats = nuisance.guilty[:, None] * weights
        self._joint[:, 0] = nuisance.never * weights[0]
        self._scale = 1.0  # what brings the sum of the joint posterior to 1
        self._conclude()

    def copy(self) -> Belief:
        """Return an independent copy."""
        return copy.copy(self)  # what a belief holds is replaced by an observation, and never changed

    def observe(self, hit: Bools, failed: bool) -> None:
        """Take in one verdict; ``hit[h]`` says that the trial would show hypothesis ``h``. Raises ValueError for one
        that the prior excludes."""
        likelihood = self._likelihood[int(failed)] * self._scale
        joint = (likelihood[HIT] - likelihood[MISSED])[:, None] * hit
        joint += likelihood[MISSED][:, None]
        joint[:, 0] = likelihood[NEVER]
        joint *= self._joint
        self._move_on(joint)
        self._joint = joint
        self._conclude()

    def _move_on(self, joint: Floats) -> None:
        """Let the period change as it may between two trials; no hypothesis gains or loses by that."""
        n = self._nuisance
        calm, *others = (joint[period] for period in n.periods)
        begun = calm * (n.onset / len(others))
        calm *= 1 - n.onset
        calm += (others[0] + others[1] + others[2]) * n.leave
        for other in others:
            other *= 1 - n.leave
            other += begun

    def _conclude(self) -> None:
        while True:
            rounded = on_grid(self._joint, JOINT_GRID)
            sums = self._sums @ rounded
            sums[:, 0] = self._sums_of_none @ rounded[:, 0]
            whole = float(sums[0].sum())
            if whole >= SMALL:
                break
            if not self._joint.any():
                raise ValueError("the prior gives these outcomes no probability at all")
            self._joint *= 1 / SMALL
        self._scale = 1 / whole
        self._forecast: Floats = sums * self._scale

    def forecast(self) -> tuple[Floats, Floats]:
        """Return each hypothesis's probability, and that of (it and the next trial fails), as rows for a trial that
        misses it and for one that hits it."""
        return self._forecast[0], self._forecast[1:]

    def rates(self) -> Rates:
        """Return the posterior of the two rates."""
        n = self._nuisance
        guilty, never = total(self._joint[:, 1:]) * self._scale, self._joint[:, 0] * self._scale
        return Rates(
            manifest=_summary(n.manifest, guilty),
            false_failure=_summary(np.append(n.false_failure, n.background), np.append(guilty, never)),
        )


def _summary(values: Floats, weights: Floats) -> Rate:
    order = np.argsort(values, kind="stable")
    values, mass = values[order], on_grid(weights[order])
    so_far = mass.cumsum()
    low, high = (min(int(np.searchsorted(so_far, q * so_far[-1])), len(values) - 1) for q in (0.05, 0.95))
    return Rate(float(total(values * mass) / so_far[-1]), float(values[low]), float(values[high]))

"""The limits of a sequential probability ratio test between two failure rates, computed exactly.

The log likelihood ratio of the higher rate over the lower is a sum of steps of two sizes. Limits of ln(1/error) keep
both errors by Ville's inequality (see ``intervals``), but a failure lands well beyond the limit, so they allow more
runs than needed. Each limit is therefore drawn in until the exact probability of a wrong end, found by following every
path, is just allowed. Where the rates are so near that tests are long, Ville's limits stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from specdebug.base.reproducible import log, log1p, total
from specdebug.search.stats.limits import SLACK, reached

_LONG = 150
"""Runs, midway between the rates, beyond which limits are not drawn in."""
_STEPS = 2500
_ALIVE = 1e-6
"""Runs after which, or probability of going on at which, to stop following; what is left is counted as an error."""
_HALVINGS = 7


@dataclass(frozen=True)
class RatioTest:
    """Ends with "low" or "high" once the ratio is down at ``-down`` or up at ``up``."""

    below: float
    above: float
    up: float
    down: float

    def ratio(self, failures: int, runs: int) -> float:
        """Return the log of the runs' likelihood at ``above`` over that at ``below``, added up of those that ``failed``
        and those that ``passed``, which add less than 0."""
        return failures * self.failed + (runs - failures) * self.passed

    @property
    def failed(self) -> float:
        return float(log(self.above / self.below))

    @property
    def passed(self) -> float:
        return float(log1p(-self.above) - log1p(-self.below))


def ratio_test(below: float, above: float, error: float) -> RatioTest:
    """Return the test whose errors, at ``below`` and at ``above``, are each at most ``error``."""
    up = down = -float(log(error))
    widest = RatioTest(below, above, up, down)
    if up * down > _LONG * widest.failed * -widest.passed:
        return widest
    test = widest
    for _ in range(2):  # each limit is valid for the other as it was; drawing that in only makes errors rarer
        test = _drawn_in(test, "up", below, error)
        test = _drawn_in(test, "down", above, error)
    return test


def _drawn_in(test: RatioTest, side: Literal["up", "down"], rate: float, error: float) -> RatioTest:
    """Return the test with one limit as near as the probability to end there at ``rate`` may be."""
    limit: float = getattr(test, side)
    least = limit / 4
    for _ in range(_HALVINGS):
        middle = (least + limit) / 2
        nearer = replace(test, **{side: middle})
        low, high = ended(nearer, rate)
        if (high if side == "up" else low) <= error - SLACK:
            limit, test = middle, nearer
        else:
            least = middle
    return test


def ended(test: RatioTest, rate: float) -> tuple[float, float]:
    """Return the probabilities to end "low" and "high" at a rate; what goes on for very long counts as both."""
    alive, fewest = np.ones(1), 0
    low = high = 0.0
    for runs in range(1, _STEPS + 1):
        stepped = np.zeros(len(alive) + 1)
        stepped[:-1] = alive * (1 - rate)
        stepped[1:] += alive * rate
        failures = fewest + np.arange(len(stepped))
        ratio = failures * test.failed + (runs - failures) * test.passed
        is_low, is_high = reached(-ratio, test.down), reached(ratio, test.up)
        low += float(total(stepped[is_low]))
        high += float(total(stepped[is_high]))
        alive = stepped[~(is_low | is_high)]
        fewest += int(is_low.sum())  # those that end low have the fewest failures
        if total(alive) < _ALIVE:
            break
    rest = float(total(alive))
    return low + rest, high + rest

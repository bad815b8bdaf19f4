"""What the search does not know besides the culprit: how often the bug shows, how often a trial fails without it, and
whether either changes from one period to the next.

A trial whose set holds the culprit fails with probability 1 - (1 - r)(1 - f), any other with f. Both rates live on a
grid. Periods are a hidden Markov chain over the sequence of trials (Rabiner, "A tutorial on hidden Markov models",
1989): *steady*, which never changes; and calm, *bad* (anything fails) and *quiet* (the bug does not show), between
which a machine may drift. Prior weight decides how readily a run of equal outcomes is put down to a period.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MISSED, HIT, NEVER = 0, 1, 2  # the trial's set lacks the culprit, holds it; there is no culprit
STEADY, CALM, BAD, QUIET = range(4)


@dataclass(frozen=True)
class Prior:
    """Prior weights. The defaults are justified in docs/bisect.md.

    Args:
        none: probability that no candidate is to blame.
        pair: share of pairs among culprit sets.
        certain: share of manifest rates that are exactly 1; the rest spread evenly in log from 0.1 to 0.95.
        clean: share of false-failure rates that are exactly 0; the rest halve with every doubling, 0.005 to 0.1.
        drifting: probability that bad or quiet periods occur at all.
        onset: chance a trial that a calm period ends.
        length: mean length of a bad or quiet period, in trials.
    """

    none: float = 0.25
    pair: float = 0.4
    certain: float = 0.35
    clean: float = 0.6
    drifting: float = 0.3
    onset: float = 0.02
    length: float = 12.0


class Nuisance:
    """The grid of ``Prior``: rates along the last axis (``size`` points), period along the first.

    Attributes:
        manifest, false_failure: the rates at each grid point when there is a culprit.
        background: the false-failure rate at each grid point when there is none; it reaches 1, because a test that
            fails whatever is switched on is evidence for "none of these" and not for a culprit.
        weights: prior weight of (period, grid point) for MISSED/HIT and for NEVER, each summing to 1.
        fail: probability that a trial fails, by (period, MISSED/HIT/NEVER, grid point).
        step: transition matrix, ``step[to, from]``.
    """

    def __init__(self, prior: Prior) -> None:
        shown = np.geomspace(0.1, 0.95, 9)
        rates = np.append(shown, 1.0)
        rate_weights = np.append(np.full(9, (1 - prior.certain) / 9), prior.certain)
        dirty = np.array([0.005, 0.012, 0.025, 0.05, 0.1])
        dirty_weights = np.array([0.28, 0.26, 0.22, 0.16, 0.08])
        false = np.append(0.0, dirty)
        false_weights = np.append(prior.clean, (1 - prior.clean) * dirty_weights)
        self.manifest: Floats = np.repeat(rates, len(false))
        self.false_failure: Floats = np.tile(false, len(rates))
        self.size = len(self.manifest)
        # the same low rates as with a culprit, each repeated to fill the grid, and a tail of higher ones
        self.background: Floats = self.false_failure.copy()
        tail = slice(self.size - len(false), self.size)
        self.background[tail] = np.linspace(0.15, 1.0, len(false))
        culprit = np.outer(rate_weights, false_weights).ravel()
        never = np.tile(false_weights, len(rates)) * 0.7 / (len(rates) - 1)
        never[tail] = 0.3 / len(false)

        onset, leave = prior.onset, 1 / prior.length
        busy = onset / (onset + leave)
        periods = np.array([1 - prior.drifting, *(prior.drifting * np.array([1 - busy, busy / 2, busy / 2]))])
        self.weights: Floats = np.stack([np.outer(periods, culprit), np.outer(periods, never)])
        self.step: Floats = np.eye(4)
        self.step[:, CALM] = [0, 1 - onset, onset / 2, onset / 2]
        self.step[[CALM, BAD], BAD] = [leave, 1 - leave]
        self.step[[CALM, QUIET], QUIET] = [leave, 1 - leave]

        usual = np.stack([self.false_failure, 1 - (1 - self.manifest) * (1 - self.false_failure), self.background])
        self.fail: Floats = np.stack([usual, usual, 1 - (1 - usual) * 0.1, usual[[MISSED, MISSED, NEVER]]])

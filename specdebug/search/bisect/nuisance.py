"""Unknowns besides the culprit: how often the bug shows, how often a trial fails without it, and if that changes.

A trial whose set holds the culprit fails with probability 1 - (1 - r)(1 - f), any other with f. Both rates live on a
grid. Periods are a hidden Markov chain over the sequence of trials (Rabiner, "A tutorial on hidden Markov models",
1989): *steady*, which never changes; and calm, *bad* (nearly anything fails), *rough* (half of anything does) and
*quiet* (the bug does not show), between which a machine may drift. Prior weight decides how readily a run of equal
outcomes is put down to a period.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdebug.base.reproducible import on_grid

Floats = NDArray[np.float64]

MISSED, HIT, NEVER = 0, 1, 2  # the trial's set lacks the culprit, holds it; there is no culprit
RATE_GRID = 2.0**-15  # the chances that trials fail are multiples of this
PERIODS = ("calm", "bad", "rough", "quiet")
BAD, ROUGH = 0.1, 0.5  # chance that a trial that would pass does so in such a period
FINE = (1.0, 0.774264, 0.599484, 0.464159, 0.359381, 0.278256, 0.215443, 0.16681, 0.129155, 0.1)
COARSE = (1.0, 0.630957, 0.398107, 0.251189, 0.158489, 0.1)
"""Manifest rates, even in log; written out, because powers differ by a last bit from processor to processor."""
USELESS = 0.05  # share of "none" where the test fails so often, whatever is switched on, that it is useless


@dataclass(frozen=True)
class Prior:
    """Prior weights. docs/bisect.md justifies the defaults.

    Args:
        none: probability that no candidate is to blame.
        pair: share of pairs among culprit sets.
        exact: probability of a deterministic test: manifest rate 1, no false failure.
        clean: otherwise, share of false-failure rates that are 0; the rest spread over 0.01 to 0.1, the manifest rate
            evenly in log over 0.1 to 1.
        drifting: probability that periods occur at all.
        onset: chance a trial that a calm period ends.
        length: mean length of a bad, rough or quiet period, in trials.
    """

    none: float = 0.25
    pair: float = 0.3
    exact: float = 0.3
    clean: float = 0.3
    drifting: float = 0.3
    onset: float = 0.02
    length: float = 12.0


def _grid(prior: Prior, manifest: Floats, false: Floats, false_weights: Floats) -> dict[str, Floats]:
    """Return every pair of a manifest rate (evenly weighted, the first is 1) and a false-failure rate (from 0), with
    their prior weights, flattened; for a culprit, and for none."""
    rows = len(manifest)
    guilty = (1 - prior.exact) * np.outer(np.full(rows, 1 / rows), false_weights).ravel()
    guilty[0] += prior.exact
    rates = {"manifest": np.repeat(manifest, len(false)), "false_failure": np.tile(false, rows)}
    # without a culprit the manifest rate means nothing: its last row of points holds higher background rates
    background = np.tile(false, rows)
    background[-len(false) :] = 0.2 + 0.8 * np.arange(len(false)) / (len(false) - 1)
    never = np.tile(false_weights, rows) * (1 - prior.exact - USELESS) / (rows - 1)
    never[0] += prior.exact
    never[-len(false) :] = USELESS / len(false)
    return {**rates, "guilty": guilty, "background": background, "never": never}


class Nuisance:
    """The points of ``Prior``: a grid of rates where periods never change, then a coarser one for each period.

    Attributes:
        manifest, false_failure: the rates at each point when there is a culprit.
        background: the false-failure rate at each point when there is none; it reaches 1, because a test that fails
            whatever is switched on is evidence for "none of these" and not for a culprit.
        guilty, never: prior weights of the points with and without a culprit, each summing to 1.
        fail: probability that a trial fails, by MISSED/HIT/NEVER and point.
        steady: number of points before those of the periods.
        periods: of each, its points.
        onset, leave: chances a trial that a calm period ends, and that any other does.
    """

    def __init__(self, prior: Prior) -> None:
        clean = prior.clean
        fine = _grid(
            prior,
            np.array(FINE),
            np.array([0.0, 0.01, 0.025, 0.05, 0.1]),
            np.append(clean, (1 - clean) * np.array([0.3, 0.3, 0.3, 0.1])),
        )
        coarse = _grid(prior, np.array(COARSE), np.array([0.0, 0.03]), np.array([clean, 1 - clean]))
        self.onset, self.leave = prior.onset, 1 / prior.length
        busy = self.onset / (self.onset + self.leave)
        others = len(PERIODS) - 1
        drifting = prior.drifting * np.array([1 - busy, *[busy / others] * others])

        def spread(name: str, by_period: Floats) -> Floats:
            return np.concatenate([fine[name], *(share * coarse[name] for share in by_period)])

        same = np.ones(len(PERIODS))
        self.manifest, self.false_failure = spread("manifest", same), spread("false_failure", same)
        self.background = spread("background", same)
        self.guilty, self.never = spread("guilty", drifting), spread("never", drifting)
        self.steady = len(fine["guilty"])
        self.guilty[: self.steady] *= 1 - prior.drifting
        self.never[: self.steady] *= 1 - prior.drifting

        hit = 1 - (1 - self.manifest) * (1 - self.false_failure)
        self.fail: Floats = np.stack([self.false_failure, hit, self.background])
        size = len(coarse["guilty"])
        self.periods = [slice(start, start + size) for start in range(self.steady, len(hit), size)]
        _, bad, rough, quiet = self.periods
        self.fail[:, bad] = 1 - (1 - self.fail[:, bad]) * BAD
        self.fail[:, rough] = 1 - (1 - self.fail[:, rough]) * ROUGH
        self.fail[HIT, quiet] = self.fail[MISSED, quiet]
        self.fail = on_grid(self.fail, RATE_GRID)

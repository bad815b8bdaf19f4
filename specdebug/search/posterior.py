"""The Bayesian posterior over culprits: hypotheses, rates and periods, updated by one trial at a time."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdebug.base.reproducible import GRID, on_grid, total

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
    # without a culprit the manifest rate means nothing: its last row of points holds higher background rates
    background = np.tile(false, rows)
    background[-len(false) :] = 0.2 + 0.8 * np.arange(len(false)) / (len(false) - 1)
    never = np.tile(false_weights, rows) * (1 - prior.exact - USELESS) / (rows - 1)
    never[0] += prior.exact
    never[-len(false) :] = USELESS / len(false)
    rates = {"manifest": np.repeat(manifest, len(false)), "false_failure": np.tile(false, rows)}
    return {**rates, "guilty": guilty, "background": background, "never": never}


class Nuisance:
    """Unknowns besides the culprit: how often the bug shows, how often a trial fails without it, and if that changes.

    A trial whose set holds the culprit fails with probability 1 - (1 - r)(1 - f), any other with f. Both rates live on
    a grid. Periods are a hidden Markov chain over the sequence of trials (Rabiner, "A tutorial on hidden Markov
    models", 1989): *steady*, which never changes; and calm, *bad* (nearly anything fails), *rough* (half of anything
    does) and *quiet* (the bug does not show), between which a machine may drift. Prior weight decides how readily a run
    of equal outcomes is put down to a period.

    Attributes, by point (a grid of rates where periods never change, then a coarser one for each period):
        manifest, false_failure: the rates when there is a culprit.
        background: the false-failure rate when there is none; it reaches 1, because a test that fails whatever is
            switched on is evidence for "none of these" and not for a culprit.
        guilty, never: prior weights of the points with and without a culprit, each summing to 1.
        fail: probability that a trial fails, by MISSED/HIT/NEVER and point.
        steady: number of points before those of the periods; periods: of each, its points.
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


Bools = NDArray[np.bool_]

JOINT_GRID = GRID / RATE_GRID
"""Probabilities are rounded to multiples of this before they are multiplied by rates and added up."""
SMALL = 2.0**-12  # a joint posterior with a smaller sum is scaled up first, or its grid would be too coarse


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


Trial = frozenset[str]  # the candidates that are switched on in a trial

NO_CULPRIT = 0.2  # share of the doubt that "none" may hold when a culprit is named
SINGLES = 0.4  # share of the doubt that singles may hold when a pair is named
BRANCHES = 8  # outcomes of running trials that are followed
STALLED = 0.05  # share of the information in reach; below, nearly every trial that could tell is masked


@dataclass(frozen=True)
class Answer:
    """A culprit set and the posterior probability that it is exactly right; an empty set says "none of these"."""

    culprits: frozenset[str]
    probability: float


class BayesianSearch(ABC):
    """A search whose hypothesis 0 is "none", the next ones each candidate in order, and the rest pairs.

    ``trials`` counts the observations, masked ones included. The same in the same order give the same state, to the bit
    and on any processor (see ``specdebug.base.reproducible``), and the next trial depends on nothing else.
    """

    def __init__(self, names: Sequence[str], blame: Floats, prior: Prior, confidence: float) -> None:
        if not names or len(set(names)) < len(names):
            raise ValueError("a search needs candidates, each of another name")
        if not 0.5 < confidence < 1:
            raise ValueError(f"confidence is between 0.5 and 1, not {confidence}")
        self._names = list(names)
        self._doubt = 1 - confidence
        self._belief = Belief(np.append(prior.none, (1 - prior.none) * blame), Nuisance(prior))
        self.trials = 0

    @abstractmethod
    def _hits(self, trial: Trial) -> Bools:
        """The hypotheses that ``trial`` would show; raises ValueError for a trial that cannot be."""

    @abstractmethod
    def _design(self, beliefs: list[tuple[float, Belief]], clear: bool) -> tuple[Trial, float]:
        """Return the best next trial and its expected bits; ``clear`` ignores masking."""

    @abstractmethod
    def _learn_masking(self, trial: Trial, masked: bool) -> None: ...

    @abstractmethod
    def _culprits(self, hypothesis: int) -> frozenset[str]: ...

    def observe(self, trial: Trial, failed: bool | None) -> None:
        """Take in the verdict of one trial, None when there is none (untestable, or failed in another way).

        Raises ValueError when the trial names something that is no candidate.
        """
        hit = self._hits(trial)
        self.trials += 1
        self._learn_masking(trial, failed is None)
        if failed is not None:
            self._belief.observe(hit, failed)

    def next_trial(self, pending: Sequence[Trial] = ()) -> Trial:
        """Return what to run next, given what is already running (``pending``)."""
        return self._design(self._outcomes(pending), clear=False)[0]

    def expected_bits(self, pending: Sequence[Trial] = ()) -> float:
        """Return the information that the next trial is expected to give, in whole ``base.reproducible.LEVEL``."""
        return self._design(self._outcomes(pending), clear=False)[1]

    @property
    def stalled(self) -> bool:
        """Return True where going on is of no use: nearly all that a trial could tell is behind masking, or none tells
        anything to within ``base.reproducible.LEVEL``."""
        return self.expected_bits() <= STALLED * self._design([(1.0, self._belief)], clear=True)[1]

    @property
    def answer(self) -> Answer | None:
        """Return the culprit set once its posterior reaches the confidence, None as long as the search should go on.

        A simpler explanation must be further out of the question than another of the same kind: naming a culprit
        where there is none costs more than mistaking one for another.
        """
        (culprits, probability), *_ = self.posterior(1)
        weights, _ = self._belief.forecast()
        if probability < 1 - self._doubt or (culprits and weights[0] > NO_CULPRIT * self._doubt):
            return None
        if len(culprits) == 2 and total(weights[1 : len(self._names) + 1]) > SINGLES * self._doubt:
            return None
        return Answer(culprits, probability)

    def posterior(self, top: int) -> list[tuple[frozenset[str], float]]:
        """Return the ``top`` most probable culprit sets (the empty one is "none of these"), most probable first."""
        weights, _ = self._belief.forecast()
        order = np.argsort(-weights, kind="stable")[:top]
        return [(self._culprits(int(h)), float(weights[h])) for h in order]

    @property
    def rates(self) -> Rates:
        return self._belief.rates()

    def _outcomes(self, pending: Sequence[Trial]) -> list[tuple[float, Belief]]:
        """Return the likeliest outcomes of the running trials: the probability of each, and the belief after it."""
        branches = [(1.0, self._belief)]
        for hit in map(self._hits, pending):
            grown: list[tuple[float, Belief]] = []
            for chance, parent in branches:
                missed, hits = parent.forecast()[1]
                p = float(total(np.where(hit, hits, missed)))
                for failed, share in ((True, p), (False, 1 - p)):
                    child = parent.copy()
                    child.observe(hit, failed)
                    grown.append((chance * share, child))
            branches = sorted(grown, key=lambda branch: -branch[0])[:BRANCHES]
        whole = math.fsum(chance for chance, _ in branches)
        return [(chance / whole, child) for chance, child in branches]

"""The posterior, the answer and the end of searches over sets and over an order."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specdebug.base.reproducible import total
from specdebug.search.bisect.belief import Belief, Bools, Rates
from specdebug.search.bisect.nuisance import Floats, Nuisance, Prior

Trial = frozenset[str]
"""The candidates that are switched on in a trial."""

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
        """Return the hypotheses that ``trial`` would show; raises ValueError for a trial that cannot be."""

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

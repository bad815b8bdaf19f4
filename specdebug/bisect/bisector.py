"""The search for one culprit, or two that only fail together, among candidates that can be switched on in any set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from specdebug.bisect.belief import Belief, Bools
from specdebug.bisect.design import Criterion, best, pool
from specdebug.bisect.masking import Masking
from specdebug.bisect.nuisance import Floats, Nuisance, Prior
from specdebug.bisect.results import Answer, Rates

BRANCHES = 8  # outcomes of running trials that are followed
NOBODY = 0.25  # share of the doubt that "none" may have left when a culprit is named
STALLED = 0.03  # share of the information in reach; below, nearly every trial that could tell is masked


class Bisector:
    """Bayesian search over "none", every single and every pair of candidates.

    The same observations in the same order give the same state, and the next trial depends on nothing else.

    Args:
        candidates: names, all different.
        confidence: posterior probability at which there is an answer.
        max_culprits: 1 leaves pairs out.
        seed: breaks ties between candidates.
        prior: weights before the first trial.

    Raises:
        ValueError: no candidates or two of the same name, a confidence outside (0.5, 1), max_culprits not 1 or 2.
    """

    def __init__(
        self,
        candidates: Sequence[str],
        *,
        confidence: float = 0.95,
        max_culprits: int = 2,
        seed: int = 0,
        prior: Prior | None = None,
    ) -> None:
        check_search(candidates, confidence)
        if max_culprits not in (1, 2):
            raise ValueError(f"max_culprits is 1 or 2, not {max_culprits}")
        prior = prior or Prior()
        n = len(candidates)
        self._names = [candidates[i] for i in np.random.default_rng(seed).permutation(n)]
        self._index = {name: i for i, name in enumerate(self._names)}
        self._confidence = confidence
        singles = np.arange(n, dtype=np.intp)
        self._first, self._second = singles, singles
        blame = np.full(n, (1 - prior.none) / n)
        if max_culprits == 2 and n > 1:
            one, two = np.triu_indices(n, 1)
            self._first, self._second = np.append(singles, one), np.append(singles, two)
            blame = np.append(blame * (1 - prior.pair), np.full(len(one), (1 - prior.none) * prior.pair / len(one)))
        self._belief = Belief(np.append(prior.none, blame), Nuisance(prior))
        self._masking = Masking(n)
        self._trials = 0

    @property
    def trials(self) -> int:
        """Observations so far, masked ones included."""
        return self._trials

    def observe(self, reverted: frozenset[str], failed: bool | None) -> None:
        """Take in the outcome of one trial.

        Args:
            reverted: the candidates that were switched on.
            failed: the verdict; None when there is none (untestable, or failed in another way).

        Raises:
            ValueError: a name that is no candidate.
        """
        members = self._members(reverted)
        self._trials += 1
        self._masking.observe(members, failed is None)
        if failed is not None:
            self._belief.observe(self._hits(members), failed)

    def next_trial(self, pending: Sequence[frozenset[str]] = ()) -> frozenset[str]:
        """The set to switch on next, whatever is already running (``pending``) taken into account."""
        return self._design(pending, self._masking.log_clear)[0]

    def expected_bits(self, pending: Sequence[frozenset[str]] = ()) -> float:
        """Information about the culprit expected of the next trial."""
        return self._design(pending, self._masking.log_clear)[1]

    @property
    def stalled(self) -> bool:
        """Nearly all that a trial could still tell is behind masking: going on is of no use."""
        clear = self._design((), np.zeros(len(self._names)))[1]
        return self.expected_bits() < STALLED * clear

    @property
    def answer(self) -> Answer | None:
        """The culprit set once its posterior reaches the confidence, None as long as the search should go on."""
        (culprits, probability), *_ = self.posterior(1)
        enough = probability >= self._confidence
        if culprits:
            enough = enough and self._belief.forecast()[0][0] <= NOBODY * (1 - self._confidence)
        return Answer(culprits, probability) if enough else None

    def posterior(self, top: int) -> list[tuple[frozenset[str], float]]:
        """The ``top`` most probable culprit sets (the empty one is "none of these"), most probable first."""
        weights, _ = self._belief.forecast()
        order = np.argsort(-weights, kind="stable")[:top]
        return [(self._culprits(int(h)), float(weights[h])) for h in order]

    @property
    def rates(self) -> Rates:
        """What was learned of the manifest rate and the false-failure rate."""
        return self._belief.rates()

    @property
    def masking(self) -> dict[str, float]:
        """Of each candidate, the estimated chance that switching it on makes a trial untestable."""
        return dict(zip(self._names, self._masking.rates.tolist(), strict=True))

    def _design(self, pending: Sequence[frozenset[str]], log_clear: Floats) -> tuple[frozenset[str], float]:
        running = [self._hits(self._members(reverted)) for reverted in pending]
        beliefs = outcomes(self._belief, running)
        criterion = Criterion(beliefs, self._first, self._second, log_clear)
        weights = self._belief.forecast()[0][1:]
        members, bits = best(criterion, pool(weights, self._first, self._second, len(self._names)))
        return frozenset(self._names[i] for i in np.flatnonzero(members)), bits

    def _members(self, reverted: Iterable[str]) -> Bools:
        members = np.zeros(len(self._names), dtype=bool)
        for name in reverted:
            if name not in self._index:
                raise ValueError(f"{name!r} is none of the candidates")
            members[self._index[name]] = True
        return members

    def _hits(self, members: Bools) -> Bools:
        return np.append(False, members[self._first] & members[self._second])

    def _culprits(self, hypothesis: int) -> frozenset[str]:
        if hypothesis == 0:
            return frozenset()
        return frozenset({self._names[self._first[hypothesis - 1]], self._names[self._second[hypothesis - 1]]})


def check_search(candidates: Sequence[str], confidence: float) -> None:
    """Raise ValueError when a search over these candidates makes no sense."""
    if not candidates or len(set(candidates)) < len(candidates):
        raise ValueError("a search needs candidates, each of another name")
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence is between 0.5 and 1, not {confidence}")


def outcomes(belief: Belief, running: Sequence[Bools]) -> list[tuple[float, Belief]]:
    """What ``belief`` becomes for every outcome of the running trials, with its probability; the likeliest only."""
    branches = [(1.0, belief)]
    for hit in running:
        grown: list[tuple[float, Belief]] = []
        for chance, parent in branches:
            fails = parent.forecast()[1]
            p = float(np.where(hit, fails[1], fails[0]).sum())
            for failed, share in ((True, p), (False, 1 - p)):
                child = parent.copy()
                child.observe(hit, failed)
                grown.append((chance * share, child))
        branches = sorted(grown, key=lambda branch: -branch[0])[:BRANCHES]
    total = sum(chance for chance, _ in branches)
    return [(chance / total, child) for chance, child in branches]

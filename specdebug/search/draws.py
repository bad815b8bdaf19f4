"""An anytime-valid test of draws from known distributions that differ from draw to draw.

Each hypothesis of how a sampler could be wrong bets on every draw, at odds that are fair if it is sound; what a unit of
money has become is its e-value. The mean of them all is an e-value, too, and exceeds 1/a with chance at most a, however
often one looks (Ville's inequality). The bets: that some part of the distribution function is hit too often, whichever
(a Dirichlet mixture over bins, against the uniform); that the likeliest tokens are, as drafts tend to be; and that the
distribution is flatter or steeper than it should be, or its temperature forgotten.

Reference: Ramdas, Grunwald, Vovk, Shafer, "Game-theoretic statistics and safe anytime-valid inference" (2023).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

BINS = 8
PRIOR = 1.0  # of each bin, the weight of the Dirichlet distribution

SETS = (1, 2, 4)  # the so many likeliest tokens whose odds a bet takes to be other than they are
ODDS = (1 / 3, 2 / 3, 1.5, 3.0)  # ...by these factors
POWERS = (0.6, 0.8, 1.25, 1.6)  # powers of all probabilities, renormalised: below 1 they are flatter

DECIDED = 0.95  # a draw in which the likeliest token has more than this tells next to nothing, and is left out

FALSE_ALARM = 1e-6

NEEDED = 850
"""Draws in which a sampler whose distribution function is off by 0.15 in total variation (1.3 times the chance on one
half of it) is caught nine times in ten; ``tests/search/test_draws.py`` holds that."""

_Floats = npt.NDArray[np.float64]


class DrawsTest:
    """The bets, and what they have come to."""

    def __init__(self) -> None:
        self.draws = 0
        self.bins = np.zeros(BINS, dtype=np.int64)
        names = [
            f"the {'likeliest token' if k == 1 else f'{k} likeliest tokens'} at {o:.2g} times the odds"
            for k in SETS
            for o in ODDS
        ]
        self._names = [*names, *(f"probabilities to the power {power:g}" for power in POWERS), "no temperature"]
        self._logs = np.zeros(len(self._names))

    def add(self, probs: _Floats, ranks: npt.NDArray[np.int64], coins: _Floats, temperature: float) -> None:
        """Count draws: ``probs`` [N, V], each row descending; ``ranks`` [N], which of them was drawn; ``coins`` [N],
        uniform and of the caller's own, where in the drawn token's part of the distribution function it fell."""
        told = probs[:, 0] <= DECIDED
        probs, ranks, coins = probs[told], ranks[told], coins[told]
        if not len(ranks):
            return
        each = np.arange(len(ranks))
        upto = probs.cumsum(1)
        drawn = probs[each, ranks]
        places = np.clip(upto[each, ranks] - coins * drawn, 0.0, 1.0)
        self.bins += np.bincount(np.minimum((places * BINS).astype(np.int64), BINS - 1), minlength=BINS)
        self.draws += len(ranks)
        bets = []
        for size in SETS:
            mass = np.minimum(upto[:, min(size, upto.shape[1]) - 1], 1.0)
            inside = ranks < size
            for odds in ODDS:
                total = mass * odds + (1 - mass)
                bets.append(np.where(inside, odds, 1.0) / total)
        for power in (*POWERS, temperature):
            raised = np.where(probs > 0, probs, 1.0) ** power * (probs > 0)
            bets.append(raised[each, ranks] / raised.sum(1) / drawn)
        self._logs += np.log(np.maximum(bets, 1e-300)).sum(1)

    @property
    def log_evidence(self) -> float:
        """The logarithm of the e-value: half of the money is on the bins, half on the other bets alike."""
        bets = self._logs - math.log(len(self._logs))
        return float(np.logaddexp(self._log_bins(), np.logaddexp.reduce(bets)) - math.log(2))

    @property
    def alarm(self) -> bool:
        return self.log_evidence >= -math.log(FALSE_ALARM)

    def said(self) -> str:
        """Name the bin that speaks most against a sound sampler."""
        worst = int(np.abs(self.bins - self.draws / BINS).argmax())
        bins = (
            f"{self.bins[worst]} draws, {self.draws / BINS:.0f} expected, in "
            f"[{worst / BINS:g}, {(worst + 1) / BINS:g}) of the distribution function, likeliest first"
        )
        best = int(self._logs.argmax())
        return bins if self._log_bins() > self._logs[best] else f"as if of {self._names[best]}; {bins}"

    def _log_bins(self) -> float:
        """Log of the Dirichlet mixture's likelihood of the bins over the uniform's."""
        lgamma, whole = math.lgamma, BINS * PRIOR
        mixed = sum(lgamma(int(count) + PRIOR) - lgamma(PRIOR) for count in self.bins)
        return lgamma(whole) - lgamma(self.draws + whole) + mixed + self.draws * math.log(BINS)

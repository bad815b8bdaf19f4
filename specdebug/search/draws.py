"""An anytime-valid test of draws from known distributions that differ from draw to draw.

Each hypothesis of how a sampler could be wrong bets on every draw, at odds that are fair if it is sound; what a unit of
money has become is its e-value. The mean of them all is an e-value, too, and exceeds 1/a with chance at most a, however
often one looks (Ville's inequality). The bets: that some part of the distribution function is hit too often, whichever
(a Dirichlet mixture over bins, against the uniform), with tokens in the order of their odds and in that of their ids,
of all draws and apart of each kind, given that it is one; that the likeliest tokens are, as drafts tend to be; and that
the distribution is flatter or steeper than it should be, or its temperature forgotten.

Reference: Ramdas, Grunwald, Vovk, Shafer, "Game-theoretic statistics and safe anytime-valid inference" (2023).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

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

Kind = Literal["any", "accepted", "correcting", "plain"]
"""All draws; drafts that were accepted; tokens in the place of drafts that were rejected; tokens without drafts."""
Order = Literal["likeliest first", "by token id"]

_Floats = npt.NDArray[np.float64]


@dataclass
class Places:
    """How often draws fell into each of :data:`BINS` equal parts of a distribution function."""

    bins: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))

    def add(self, weights: _Floats, drawn: npt.NDArray[np.int64], coins: _Floats) -> None:
        """Count draws: ``drawn`` [N], a column each of ``weights`` [N, V], which need not add up to 1. ``coins`` as of
        :meth:`DrawsTest.add`."""
        upto, each = weights.cumsum(1), np.arange(len(drawn))
        places = np.clip((upto[each, drawn] - coins * weights[each, drawn]) / upto[:, -1], 0.0, 1.0)
        self.bins += np.bincount(np.minimum((places * BINS).astype(np.int64), BINS - 1), minlength=BINS)

    @property
    def log_evidence(self) -> float:
        """Log of the Dirichlet mixture's likelihood of the bins over the uniform's."""
        lgamma, whole, draws = math.lgamma, BINS * PRIOR, int(self.bins.sum())
        mixed = sum(lgamma(int(count) + PRIOR) - lgamma(PRIOR) for count in self.bins)
        return lgamma(whole) - lgamma(draws + whole) + mixed + draws * math.log(BINS)


class DrawsTest:
    """The bets, and what they have come to."""

    def __init__(self) -> None:
        self.draws = 0
        orders: tuple[Order, ...] = get_args(Order)
        self.places = {(kind, order): Places() for kind in get_args(Kind) for order in orders}
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
        self.places["any", "likeliest first"].add(probs, ranks, coins)
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

    def add_by_id(self, kind: Kind, weights: _Floats, ids: npt.NDArray[np.int64], coins: _Floats) -> None:
        """Count draws by their tokens' ``ids`` [N]. ``weights`` [N, V]: of each token by its id, given that the draw is
        of this kind, which need not add up to 1; of ``any`` as they are, of which the order of odds is told by
        :meth:`add`."""
        each, whole = np.arange(len(ids)), weights.sum(1)
        told = (weights.max(1) <= DECIDED * whole) & (weights[each, ids] > 0)
        weights, ids, coins = weights[told], ids[told], coins[told]
        if not len(ids):
            return
        self.places[kind, "by token id"].add(weights, ids, coins)
        if kind != "any":
            order = np.argsort(-weights, axis=1, kind="stable")
            ranks = (order == ids[:, None]).argmax(1)
            self.places[kind, "likeliest first"].add(np.take_along_axis(weights, order, 1), ranks, coins)

    @property
    def log_evidence(self) -> float:
        """The logarithm of the e-value. Of the money a half is on bets that name a wrong distribution, a quarter on the
        bins of all draws in the order of their odds, and a quarter on all other bins alike."""
        bets = self._logs - math.log(2 * len(self._logs))
        first, *others = self._log_places()
        rest = np.array(others) - math.log(4 * len(others))
        return float(np.logaddexp.reduce([first - math.log(4), *rest, *bets]))

    @property
    def alarm(self) -> bool:
        return self.log_evidence >= -math.log(FALSE_ALARM)

    def said(self) -> str:
        """Name the bin that speaks most against a sound sampler."""
        kind, order = max(self.places, key=lambda each: self.places[each].log_evidence)
        bins = self.places[kind, order].bins
        draws = int(bins.sum())
        worst = int(np.abs(bins - draws / BINS).argmax())
        whose = "draws" if kind == "any" else f"{kind} draws"
        told = (
            f"{bins[worst]} {whose}, {draws / BINS:.0f} expected, in "
            f"[{worst / BINS:g}, {(worst + 1) / BINS:g}) of the distribution function, {order}"
        )
        best = int(self._logs.argmax())
        return told if max(self._log_places()) > self._logs[best] else f"as if of {self._names[best]}; {told}"

    def _log_places(self) -> Iterator[float]:
        return (each.log_evidence for each in self.places.values())

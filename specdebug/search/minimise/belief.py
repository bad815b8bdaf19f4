"""Infer which elements are needed from trials of the thing with some of them taken away.

Every element is needed with some probability, independently before any trial. A trial without the elements X is a
factor over these: it speaks only of the statement that nothing in X is needed. Belief propagation (Pearl 1988) finds
the marginals, in log odds, on a graph that is nearly a tree, as trials extend what has already been taken away, and in
which elements that were always taken away together are one variable. ``base.reproducible`` computes everything:
the same trials give the same bits on any processor.
"""

from __future__ import annotations

from itertools import accumulate, repeat
from operator import mul

import numpy as np

from specdebug.base.reproducible import exp, expm1, log, log1p, logaddexp, product, total
from specdebug.search.minimise.rates import KNOWN_FAILED, TALLY, TrialRates, learn

Removed = frozenset[int]

_IMPOSSIBLE = 30.0
_BEYOND_DOUBT = 7.0
_SURE = 60.0
_ROUNDS = 6
_DAMPING = 0.3
_NEARNESS = 0.8
"""The evidence of a set on the present rate, for each element of the base that it lacks."""


class NeedBelief:
    """The state of knowledge over ``size`` elements, each of which is needed with probability ``prior``.

    Attributes:
        rates: of trials, as they are known.
        tried: every set that was taken away, or found impossible to, by its row.
        needed: of every element, the probability that it is needed.
        against: of every element, the log odds that it is needed that come from trials in which it was gone and, of the
            others, only what the base holds, which is not needed; 0 without such trials.
    """

    def __init__(self, size: int, prior: float, rates: TrialRates) -> None:
        self.rates = rates
        self._start = rates
        self._size = size
        self._prior = np.full(size, log(prior) - log1p(-prior))
        self._nearness = np.array([*accumulate(repeat(_NEARNESS, size), mul, initial=1.0)])
        self.tried: dict[Removed, int] = {}
        self._rows = np.zeros((0, size), dtype=bool)
        self._tallies = np.zeros((0, len(TALLY)), dtype=int)
        self._possible = np.zeros(0, dtype=bool)
        self._log_odds = np.zeros(0)
        self._fine = np.ones(0)
        self.against = np.zeros(size)
        self.needed = _sigmoid(self._prior)

    def tally(self, removed: Removed) -> tuple[int, ...]:
        """Return the counts of trials without exactly these, in the columns of ``rates``."""
        at = self.tried.get(removed)
        return TALLY if at is None else tuple(map(int, self._tallies[at]))

    def fine(self, removed: Removed) -> float:
        """Return the probability that the thing still has all it needs without these."""
        at = self.tried.get(removed)
        if at is not None:
            return float(self._fine[at])
        return float(product(1 - self.needed[sorted(removed)]))

    def observe(self, removed: Removed, failed: bool, known: bool) -> None:
        """Take in one trial; ``known`` says that its seed had failed before."""
        row, column = self._row(removed), (KNOWN_FAILED if known else 0) + (0 if failed else 1)
        self._tallies[row, column] += 1

    def exclude(self, removed: Removed) -> None:
        """Take in that these cannot be taken away together at all."""
        row = self._row(removed)
        self._possible[row] = False

    def update(self, base: Removed) -> None:
        """Draw the conclusions; ``base`` is what is taken away for now, to whose rate the present one is nearest."""
        if not self.tried:
            return
        self._log_odds = np.where(self._possible, self.rates.log_odds(self._tallies), _IMPOSSIBLE)
        self._log_odds = self._log_odds.clip(-_IMPOSSIBLE, _IMPOSSIBLE)
        gone = np.zeros(self._size, dtype=bool)
        gone[list(base)] = True
        beyond = self._rows & ~gone
        alone = beyond.sum(axis=1) == 1
        self.against = total(self._log_odds[alone][:, None] * beyond[alone], axis=0)
        # Sets with something that is needed beyond doubt say nothing of the rest.
        explained = ~alone & beyond[:, self.against >= _BEYOND_DOUBT].any(axis=1)
        self._fine[explained] = 0.0
        self._propagate(np.flatnonzero(~explained))
        missing = (gone & ~self._rows).sum(axis=1)
        self.rates = learn(self._tallies, self._fine, self._nearness[missing], self._start)

    def _row(self, removed: Removed) -> int:
        if removed not in self.tried:
            self.tried[removed] = len(self.tried)
            row = np.zeros((1, self._size), dtype=bool)
            row[0, list(removed)] = True
            self._rows = np.vstack([self._rows, row])
            self._tallies = np.vstack([self._tallies, [TALLY]])
            self._possible = np.append(self._possible, True)
            self._log_odds = np.append(self._log_odds, 0.0)
            self._fine = np.append(self._fine, 1.0)
        return self.tried[removed]

    def _propagate(self, sets: np.ndarray) -> None:
        """Work out marginals given these sets."""
        log_odds = self._log_odds[sets]
        member, block, log_free = self._blocks(sets)
        # log_free: of a block, the prior log probability that nothing in it is needed
        prior = log(-expm1(log_free)) - log_free
        # what a factor says if everything else in it is free, relative to something in it being needed
        surplus = expm1(-log_odds)[:, None]
        messages = np.zeros(member.shape)
        for _ in range(_ROUNDS):
            free = self._free(member, prior, messages)
            others = np.minimum(total(free)[:, None] - free, 0.0)
            said = np.where(member, -log(np.maximum(1 + surplus * exp(others), 1e-13)), 0.0)
            messages = _DAMPING * messages + (1 - _DAMPING) * said
        free = total(self._free(member, prior, messages))
        whole = free - log_odds
        self._fine[sets] = exp(whole - logaddexp(whole, log(-expm1(np.minimum(free, -1e-12)))))
        of_block = _sigmoid(prior + total(messages, axis=0))
        # an element's share of its block: its own prior over the block's
        share = _sigmoid(self._prior) / -expm1(log_free)[block]
        self.needed = np.minimum(of_block[block] * share, 1.0)

    @staticmethod
    def _free(member: np.ndarray, prior: np.ndarray, messages: np.ndarray) -> np.ndarray:
        """Return, by set and block, the log probability that it is not needed, as all the other sets see it."""
        cavity = np.clip(prior + total(messages, axis=0) - messages, -_SURE, _SURE)
        return np.asarray(-log(1 + exp(cavity)) * member)

    def _blocks(self, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return sets by blocks of elements that no set tells apart; every element's block; every block's log prior."""
        rows = self._rows[sets]
        names: dict[bytes, int] = {}
        packed = np.packbits(rows, axis=0).T
        block = np.array([names.setdefault(column.tobytes(), len(names)) for column in packed])
        first = np.unique(block, return_index=True)[1]
        # every element has the same prior
        log_free = np.bincount(block, minlength=len(names)) * -logaddexp(0.0, self._prior[0])
        return rows[:, first], block, log_free


def _sigmoid(log_odds: np.ndarray) -> np.ndarray:
    return exp(-logaddexp(0.0, -log_odds))

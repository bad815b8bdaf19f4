"""Take away as many of some elements as can be taken away, one trial at a time, by what is believed of each.

What counts as taken away is the largest set that has failed as it should and is as good as certain to need nothing of
what is gone. Promises and probabilities are compared by their levels (``base.reproducible``): of equal promises the one
that takes away least is taken, then the first to have come up; of equally probable elements, the first."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, repeat
from operator import mul

import numpy as np

from specdebug.base.reproducible import exp, expm1, level, levels, log, log1p, logaddexp, product, total

SLOWER = ((1.0, 0.75), (0.6, 0.25))
"""Changes of the rate that taking away something that is not needed may bring: the factor, and its probability. A
higher rate only makes clean trials rarer."""
FALSE_FAILURES = (0.6, 50.0)  # Beta prior of the rate at which a thing fails that should not: a mean of 1.2%
FRESH_FAILED, FRESH_CLEAN, KNOWN_FAILED, KNOWN_CLEAN = range(4)
"""Columns of a tally: failing and clean trials, with fresh seeds and with known ones."""
TALLY = (0, 0, 0, 0)  # no trials
INCIDENTAL = 0.1
"""The rate at which a known seed fails by accident although something needed is gone; other seeds would not."""
UNSURE, SURE = (1.2, 0.8), (30.0, 0.5)
"""Beta priors of the rate at which a known seed fails again: to be learned, or of what failed in every trial."""
_STRENGTH = 10  # the number of trials that the rate that was measured before counts for
_LEAST_FRESH = 0.6
_FALSE_SHARE = 0.2


@dataclass(frozen=True)
class TrialRates:
    """Probabilities that a trial fails: ``fresh`` of something that has all it needs, with a fresh seed; ``known`` the
    same, with a seed that failed before, on a thing from which less was taken away; ``false`` of something that lacks
    what the failure needs. A known seed fails far more often where a run is a function of its seed, and as often as any
    other where it is not: which of the two holds is learned, unless it is ``sure`` from the start."""

    fresh: float
    known: float
    false: float
    sure: bool = False

    def log_odds(self, tallies: np.ndarray) -> np.ndarray:
        """Return the log of how many times likelier each tally (a row) is if something needed is gone."""
        incidental = min(max(self.false, INCIDENTAL), self.known * _FALSE_SHARE)
        gone = log([self.false, 1 - self.false, incidental, 1 - incidental])
        slower: list[np.ndarray] = []
        for factor, weight in SLOWER:
            fresh, known = self.fresh * factor, self.known * (1.0 if self.sure else factor)
            slower.append(total(tallies * log([fresh, 1 - fresh, known, 1 - known])) + log(weight))
        return np.asarray(total(tallies * gone) - reduce(logaddexp, slower))


def learn(tallies: np.ndarray, fine: np.ndarray, near: np.ndarray, before: TrialRates) -> TrialRates:
    """Return rates given the tallies of candidates (rows) and what to assume where these say little: one step of
    expectation maximisation. A thing whose failure became much rarer counts as one that lacks something: so the fresh
    rate has a least value.

    ``fine`` is each candidate's probability that nothing needed is gone, ``near`` how much its rate says of the present
    one (0 to 1).
    """
    seen, weight, gone = tallies.astype(float), fine * near, 1 - fine

    def expected(chance: np.ndarray, count: np.ndarray) -> float:
        return float(total(chance * count))

    # What is tried until it fails has one failure too many.
    failed = expected(weight, np.maximum(seen[:, FRESH_FAILED] - 1, 0)) + _STRENGTH * before.fresh
    fresh = failed / (failed + expected(weight, seen[:, FRESH_CLEAN]) + _STRENGTH * (1 - before.fresh))
    failures, clean = SURE if before.sure else UNSURE
    failed = expected(fine, seen[:, KNOWN_FAILED]) + failures
    known = failed / (failed + expected(fine, seen[:, KNOWN_CLEAN]) + clean)
    failed = expected(gone, seen[:, FRESH_FAILED]) + FALSE_FAILURES[0]
    false = failed / (failed + expected(gone, seen[:, FRESH_CLEAN]) + FALSE_FAILURES[1])
    fresh = min(max(fresh, _LEAST_FRESH * before.fresh), 0.98)
    # A seed that has failed fails no less often than one of which nothing is known.
    known = min(max(known, fresh), 0.98)
    return TrialRates(fresh, known, min(false, fresh * _FALSE_SHARE), before.sure)


Removed = frozenset[int]

_IMPOSSIBLE = 30.0
_BEYOND_DOUBT = 7.0
_SURE = 60.0
_ROUNDS = 6
_DAMPING = 0.3
_NEARNESS = 0.8  # the evidence of a set on the present rate, for each element of the base that it lacks


class NeedBelief:
    """The state of knowledge over ``size`` elements, each of which is needed with probability ``prior``.

    A trial without the elements X is a factor over these: it speaks only of the statement that nothing in X is needed.
    Belief propagation (Pearl 1988) finds the marginals, in log odds, on a graph that is nearly a tree, as trials extend
    what has already been taken away, and in which elements that were always taken away together are one variable.

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


ACCEPT = 0.99  # probability that nothing needed is gone, from which on a set that has failed counts as taken away
DOUBTFUL = 0.1  # a set that has failed is not tried again below this probability
SETTLED = 0.995  # the same, for what the search ends with
FRESH_TRIALS = 60  # trials of what is left by itself before it is given up to find it failing as often as it should
SOUNDINGS = 3  # so many small groups are taken away first with known seeds, to learn if these go on failing
SOUNDING_SHARE = 25  # such a group is this fraction of all elements
EXPECTED_NEEDED = 2.5  # the number of elements that are needed, roughly, before anything is known
KNOWN_SEEDS = 6  # at most so many known seeds are spent on one candidate
KNOWN_MATTER = 1.15  # known seeds are used while they fail so many times as often as others


@dataclass(frozen=True)
class Probe:
    """A trial to make: what is taken away, and the seed, ``known`` if it has failed before."""

    removed: Removed
    seed: int
    known: bool


class SubsetSearch:
    """The search over ``size`` elements; it has no state but what it was told.

    Args:
        fresh: gives seeds that were never used.
        failing: seeds that fail with nothing taken away, those to use first in front.
        possible: says if some elements can be taken away together; asked before they are tried.
        confidence: a kept element is confirmed needed at this probability.
        failures: what is left is tried by itself until it has failed so often with fresh seeds.
    """

    def __init__(
        self,
        size: int,
        rates: TrialRates,
        fresh: Callable[[], int],
        failing: Sequence[int],
        possible: Callable[[Removed], bool],
        confidence: float = 0.95,
        failures: int = 4,
    ) -> None:
        self._size = size
        self._fresh = fresh
        self._possible = possible
        prior = min(0.3, EXPECTED_NEEDED / max(size, 1))
        # Before any trial an element is hardly likely to be needed, and there are many to be unlucky with.
        self._certain = level(log(confidence / (1 - confidence)) - log(prior / (1 - prior)))
        self._belief = NeedBelief(size, prior, rates)
        self._used: dict[Removed, set[int]] = {frozenset(): set(failing)}
        self._failed: dict[Removed, list[int]] = {frozenset(): list(failing)}
        self._clean: dict[int, list[Removed]] = {}
        self._excluded: set[Removed] = set()
        self._failures = failures
        self.removed: Removed = frozenset()

    @property
    def rates(self) -> TrialRates:
        return self._belief.rates

    @property
    def needed(self) -> np.ndarray:
        return self._belief.needed

    def failing_seeds(self) -> list[int]:
        """Return seeds that have failed, each once: first those that failed with all of ``removed`` gone."""
        chosen = sorted((gone for gone in self._failed if gone <= self.removed), key=len, reverse=True)
        return list(dict.fromkeys(seed for gone in chosen for seed in self._failed[gone]))

    def fresh(self, removed: Removed) -> tuple[int, int]:
        """Return how often it failed without exactly these, and in how many trials, with fresh seeds."""
        failed, passed, *_ = self._belief.tally(removed)
        return failed, failed + passed

    def confirmed(self, element: int) -> bool:
        """Return True if taking away this element alone, of those that are kept, was found to end the failure."""
        return level(self._belief.against[element]) >= self._certain

    def observe(self, probe: Probe, failed: bool) -> None:
        """Take in a trial, and if it failed in the way that is followed."""
        self._belief.observe(probe.removed, failed, probe.known)
        self._used.setdefault(probe.removed, set()).add(probe.seed)
        if failed:
            self._failed.setdefault(probe.removed, []).append(probe.seed)
        elif probe.known:
            self._clean.setdefault(probe.seed, []).append(probe.removed)
        self._conclude()

    def next_probe(self, pending: Sequence[Probe] = ()) -> Probe | None:
        """Return the trial to make next, None when there is nothing left to find out. Running ones count as clean."""
        while True:
            removed = self._sounding(pending) or self._choose([probe.removed for probe in pending])
            if removed is None:
                return None
            if removed in self._failed or removed in self._used or self._possible(removed):
                return self._probe(removed, pending)
            self._excluded.add(removed)
            self._belief.exclude(removed)
            self._conclude()

    def _sounding(self, pending: Sequence[Probe]) -> Removed | None:
        share = self._size // SOUNDING_SHARE
        tried = len(self._used) - 1 + len(self._excluded) + len(pending)
        if not share or tried >= SOUNDINGS:
            return None
        first = tried * self._size // SOUNDINGS
        return frozenset(range(first, first + share))

    def _probe(self, removed: Removed, pending: Sequence[Probe]) -> Probe:
        """Return a trial with a known seed, as long as these fail more often than others; each is used at most once
        with one candidate, for where they matter the same trial has the same end."""
        tried = self._belief.tally(removed)
        spent = self._used.get(removed, set()) | {probe.seed for probe in pending if probe.removed == removed}
        rates = self._belief.rates
        known_matter = rates.known > KNOWN_MATTER * rates.fresh and sum(tried[KNOWN_FAILED:]) < KNOWN_SEEDS
        if removed != self.removed and known_matter:
            trusted = [seed for seed in self.failing_seeds() if seed not in spent and self._trust(seed) > 0]
            if trusted:
                return Probe(removed, max(trusted, key=self._trust), True)
        return Probe(removed, self._fresh(), False)

    def _trust(self, seed: int) -> int:
        """Return a known seed's failures, less the clean runs that nothing explains: one that failed by accident would
        be taken for evidence against everything it is tried with."""
        failures = sum(seed in seeds for seeds in self._failed.values())
        return level(failures - math.fsum(self._belief.fine(removed) for removed in self._clean.get(seed, ())))

    def _conclude(self) -> None:
        self._belief.update(self.removed)
        good = [removed for removed in self._failed if not removed or self._belief.fine(removed) >= ACCEPT]
        best = max(good, key=lambda removed: (len(removed), level(self._belief.fine(removed))))
        if best != self.removed:
            self.removed = best
            self._belief.update(best)

    def _choose(self, pending: Sequence[Removed]) -> Removed | None:
        belief, base = self._belief, self.removed
        needed = belief.needed
        rank = levels(needed)
        promises: list[tuple[float, Removed]] = [
            (len(removed - base) * belief.fine(removed), removed)
            for removed in self._failed
            if len(removed) > len(base) and belief.fine(removed) >= DOUBTFUL
        ]
        kept = [element for element in range(self._size) if element not in base]
        open_ones = sorted(
            (element for element in kept if not self.confirmed(element) and needed[element] < SETTLED),
            key=lambda element: (rank[element], element),
        )
        # By falling probability that nothing needed is among them: the best group of each size.
        fine = belief.fine(base) * np.cumprod(1 - needed[open_ones])
        for count, alike in enumerate(fine, 1):
            removed = base.union(open_ones[:count])
            if removed not in self._excluded:
                promises.append((count * (belief.fine(removed) if removed in self._used else alike), removed))
        if not promises:
            return self._confirm(kept, pending)
        counts = {removed: pending.count(removed) for removed in set(pending)}

        def gain(promise: tuple[float, Removed]) -> tuple[int, int]:
            value, removed = promise
            clean = 1.0
            for _ in range(counts.get(removed, 0)):
                clean *= 1 - belief.rates.fresh * belief.fine(removed)
            return level(value * clean), -len(removed)

        return max(promises, key=gain)[1]

    def _confirm(self, kept: Sequence[int], pending: Sequence[Removed]) -> Removed | None:
        """Return a trial to make sure of what is left, then of every element of it by itself."""
        failed, clean, _, _ = self._belief.tally(self.removed)
        fresh = failed + clean + pending.count(self.removed)
        unknown = failed < self._failures and fresh < FRESH_TRIALS
        if self.removed and (unknown or self._belief.fine(self.removed) < SETTLED):
            return self.removed
        unconfirmed = [element for element in kept if not self.confirmed(element)]
        if not unconfirmed:
            return None
        against = levels(self._belief.against)
        weakest = min(unconfirmed, key=lambda e: (pending.count(self.removed | {e}), against[e], e))
        return self.removed | {weakest}

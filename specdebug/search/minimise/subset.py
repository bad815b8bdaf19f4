"""Take away as many of some elements as can be taken away, one trial at a time.

Nothing is decided for good before the end. What counts as taken away is the largest set that has failed as it should
and is as good as certain to need nothing of what is gone; when later trials cast doubt on that, the search goes on from
a smaller one.

Promises, probabilities and evidence are compared by their levels (``base.reproducible``), so that ties are not
decided by rounding: of equal promises the one that takes away least is taken, then the first to have come up; of
equally probable elements, the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specdebug.base.reproducible import level, levels, log
from specdebug.search.minimise.belief import NeedBelief, Removed
from specdebug.search.minimise.rates import KNOWN_FAILED, TrialRates

ACCEPT = 0.99
"""Probability that nothing needed is gone, from which on a set that has failed counts as taken away."""
DOUBTFUL = 0.1
"""A set that has failed is not tried again below this probability."""
SETTLED = 0.995
"""The same, for what the search ends with."""
FRESH_TRIALS = 60
"""Trials of what is left by itself before it is given up to find it failing as often as it should."""
SOUNDINGS = 3
"""So many small groups are taken away first with known seeds, to learn if these go on failing."""
SOUNDING_SHARE = 25
"""Such a group is this fraction of all elements."""
EXPECTED_NEEDED = 2.5
"""The number of elements that are needed, roughly, before anything is known."""
KNOWN_SEEDS = 6
"""At most so many known seeds are spent on one candidate."""
KNOWN_MATTER = 1.15
"""Known seeds are used while they fail so many times as often as others."""


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

"""Take away as many of some elements as can be taken away of what failed in every trial: one trial decides a candidate.

A run is a function of its seed. So a candidate that passes with a seed that has always failed lacks something, and one
that fails with it lacks nothing. That this is no luck of the seed, another shows of what is left; if it passes, it
takes the first one's place."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specdebug.search.subset import Probe, Removed, SubsetSearch, TrialRates

AGAINST = 2
"""With so many more passes than failures of fresh seeds, too much is gone."""


class SureSearch(SubsetSearch):
    """As that. ``together``: all elements are tried at once, with a fresh seed, for its failure is evidence of what is
    left, too; then halves, and so on; otherwise each by itself. If the first of a kind has to be kept, all of the kind
    are. Running trials count as passed. Where it ``doubts``, fresh seeds that pass make it go on as that."""

    def __init__(self, size: int, *args: Any, together: bool, kinds: Sequence[str], doubts: bool, **more: Any) -> None:
        super().__init__(size, *args, **more)
        self._kinds = kinds or [str(element) for element in range(size)]
        self._needed: set[int] = set()
        self._kept: set[int] = set()
        self._passed: list[Removed] = []
        self._seed: int = self.failing_seeds()[0]
        self._looking = frozenset[int]()
        self._doubts = doubts
        self._doubted = False
        every = [frozenset([element]) for element in range(size)]
        self._groups = [frozenset[int]().union(*every)] if together else every

    @property
    def rates(self) -> TrialRates:
        return replace(super().rates, sure=False) if self._doubted else super().rates

    def confirmed(self, element: int) -> bool:
        return super().confirmed(element) if self._doubted else element in self._needed

    def observe(self, probe: Probe, failed: bool) -> None:
        """Take in a trial. Of fresh seeds with which what is left passes, the last is from then on the one to try."""
        super().observe(replace(probe, known=probe.seed in self.failing_seeds()), failed)
        if self._doubted:
            return
        if failed and probe.removed >= self.removed:
            self.removed = probe.removed
        elif not failed and probe.removed != self.removed:
            self._pass(probe)
        elif not failed and self._passes() >= AGAINST:
            self._doubted = self._doubts
            self._seed, self._looking, self.removed = probe.seed, probe.removed, frozenset()
            self._passed, self._groups = [probe.removed], self._parts(probe.removed)
            self._conclude()
        self._settle()

    def next_probe(self, pending: Sequence[Probe] = ()) -> Probe | None:
        running = {probe.removed for probe in pending}
        while not self._doubted:
            group = next((each for each in self._groups if self.removed | each not in running), None)
            if group is None:
                failed, trials = self.fresh(self.removed)
                enough = 2 * failed > trials if self._doubts else failed
                lacking = self.removed and not enough and self.removed not in running
                return Probe(self.removed, self._fresh(), False) if lacking else None
            removed = self.removed | group
            if self._possible(removed):
                first = len(group) == self._size > 1 and len(self._used) == 1
                return Probe(removed, self._fresh() if first else self._seed, not first)
            self._passed.append(removed)
            self._split(group)
            self._settle()
        return super().next_probe(pending)

    def _passes(self) -> int:
        """Passes of what is left with fresh seeds, less its failures."""
        failed, trials = self.fresh(self.removed)
        return trials - 2 * failed

    def _pass(self, probe: Probe) -> None:
        """Take in that a group cannot go."""
        group = probe.removed - self.removed
        if probe.seed == self._seed:
            self._passed.append(probe.removed)
            kinds = {self._kinds[element] for element in group if len(group) == 1}
            if not kinds & {self._kinds[element] for element in self.removed | self._looking}:
                self._kept |= {element for element, kind in enumerate(self._kinds) if kind in kinds}
        self._split(group)

    def _split(self, group: Removed) -> None:
        """From now on try the parts of a group, after the other groups."""
        if group in self._groups:
            self._groups.remove(group)
            self._groups += self._parts(group)

    @staticmethod
    def _parts(group: Removed) -> list[Removed]:
        ordered, half = sorted(group), -(-len(group) // 2)
        return [frozenset(part) for part in (ordered[:half], ordered[half:]) if part]

    def _settle(self) -> None:
        """Draw the conclusions: of a set that passed, the only element that is not gone is needed."""
        self._needed |= {next(iter(left)) for gone in self._passed if len(left := gone - self.removed) == 1}
        settled = self.removed | self._needed | self._kept
        self._groups = [left for each in self._groups if (left := each - settled)]

    def _conclude(self) -> None:
        if self._doubted:
            super()._conclude()
        else:
            self._belief.update(self.removed)

"""The parts that can be taken away from a scenario, stage by stage: see ``specdebug.search.minimise.space``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from specdebug.base.errors import SpecDebugError
from specdebug.campaign.shrink.engine_knobs import engine_knobs, made_consistent
from specdebug.campaign.shrink.knob import Knob
from specdebug.campaign.shrink.request_knobs import request_knobs
from specdebug.campaign.shrink.requests import dropped, written_out
from specdebug.scenario.checks import check_scenario
from specdebug.scenario.grammar import Scenario

PRECISION = 4
"""A number is small enough when one smaller by no more than a fourth of it does not fail any more."""


@dataclass(frozen=True)
class Elements:
    """A stage of the search: some of what can be taken away."""

    title: str
    labels: tuple[str, ...]
    make: Callable[[frozenset[int]], Scenario]

    def without(self, removed: frozenset[int]) -> Scenario | None:
        """Return the scenario without these; None where the rules of scenarios forbid it."""
        with contextlib.suppress(SpecDebugError):
            scenario = self.make(removed)
            if scenario.workload:
                check_scenario(scenario, None)
                return scenario
        return None


class ScenarioSpace:
    """Everything that can be taken away from one arm of a scenario. Takes what :func:`written_out` takes, and raises
    what that raises."""

    def __init__(self, scenario: Scenario, arm: str, reverts: Sequence[int] = ()) -> None:
        self.start, self.origin = written_out(scenario, arm, reverts)
        self._current = self.start
        self.arm = arm
        self._elements: Elements | None = None
        self._knobs: list[Knob] = []
        self._rounds = 0
        self._rejected: dict[str, int] = {}

    def next_stage(self) -> Elements | None:
        """Return the requests first; then their numbers, round by round; then the engine's, which small requests need
        less of."""
        if self._elements is None:
            whole, names = self._current, tuple(group.id for group in self._current.workload)
            self._elements = Elements("requests", names, lambda gone: dropped(whole, gone))
            return self._elements
        self._knobs = []
        for knobs in (request_knobs, engine_knobs):
            self._knobs = [knob for knob in self._proposals(knobs) if knob.target < knob.value]
            if self._knobs:
                self._elements = self._numbers(tuple(self._knobs))
                return self._elements
        return None

    def took(self, removed: frozenset[int], confirmed: frozenset[int]) -> None:
        """Go on from what is left; what is confirmed needed bounds the numbers from below."""
        assert self._elements is not None
        self._current = self._elements.make(removed)
        for index, knob in enumerate(self._knobs):
            if index not in removed:
                self._rejected[knob.label] = max(knob.target, self._rejected.get(knob.label, -1))

    def _numbers(self, knobs: tuple[Knob, ...]) -> Elements:
        whole = self._current
        self._rounds += 1

        def turned(which: frozenset[int]) -> Scenario:
            scenario = whole
            for index in sorted(which):
                scenario = knobs[index].turn(scenario, knobs[index].target)
            return made_consistent(scenario)

        labels = tuple(f"{knob.label} {knob.value} -> {knob.target}" for knob in knobs)
        return Elements(f"numbers, round {self._rounds}", labels, turned)

    def _proposals(self, knobs: Callable[[Scenario], Iterator[Knob]]) -> Iterator[Knob]:
        for knob in knobs(self._current):
            rejected = self._rejected.get(knob.label)
            if rejected is None:
                yield replace(knob, target=_least(knob, self._current))
            elif knob.value - rejected > max(1, knob.value // PRECISION):
                yield replace(knob, target=(knob.value + rejected) // 2)


def _least(knob: Knob, scenario: Scenario) -> int:
    """Return the least value that scenarios may have there, the rest being as it is; this needs no trial."""

    def allowed(value: int) -> bool:
        try:
            check_scenario(made_consistent(knob.turn(scenario, value)), None)
        except SpecDebugError:
            return False
        return True

    low, high = knob.target, knob.value
    if low >= high or allowed(low):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return high

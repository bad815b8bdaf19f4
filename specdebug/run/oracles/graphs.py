"""Graphs: a forward runs as a graph of the smallest captured size that holds its batch, and eagerly if none does.

What is expected follows from the sizes that the scenario asks for, not from what the engine believes it has.
"""

from __future__ import annotations

from specdebug.events import AfterStep, Event, Launched
from specdebug.run.oracles.base import Bench, Oracle, OracleSettings
from specdebug.verdict.outcome import Violation


class Graphs(Oracle):
    """Holds what was launched in a step against the captured sizes. What is wrong is said once a run for each forward,
    batch size and way in which it ran: it is as wrong in every step that follows."""

    name = "graphs"
    needs = frozenset({"draft", "graphs"})
    hears = (Launched, AfterStep)

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.spec.graphs and settings.target.drafts and bool(settings.target.graphs)

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._launches: list[Launched] = []
        self._said: set[tuple[str, int, int | None]] = set()

    def on(self, event: Event) -> None:
        match event:
            case Launched():
                self._launches.append(event)
            case AfterStep(step):
                self._judge(step)

    def _judge(self, step: int) -> None:
        launches, self._launches = self._launches, []
        for launch in launches:
            self.bench.looked(self.name)
            ran, expected = (launch.forward, launch.batch_size, launch.captured), self._holding(launch.batch_size)
            if launch.captured != expected and ran not in self._said:
                self._said.add(ran)
                self._report(launch, expected, step)

    def _holding(self, batch_size: int) -> int | None:
        """The smallest captured size that holds a batch; None where every one is too small."""
        return min((size for size in self.bench.settings.target.graphs if size >= batch_size), default=None)

    def _report(self, launch: Launched, expected: int | None, step: int) -> None:
        detail = (
            f"{launch.forward} of a batch of {launch.batch_size} ran {_way(launch.captured)}, expected {_way(expected)}"
        )
        data = {"batch_size": launch.batch_size, "got": launch.captured, "expected": expected}
        self.bench.report(Violation("graphs", launch.forward, step, detail, data=data))


def _way(captured: int | None) -> str:
    return "eagerly" if captured is None else f"as the graph of {captured}"

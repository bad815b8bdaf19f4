"""Graphs: a forward runs as a graph of the smallest captured size that holds its batch, and eagerly if none does.

What is expected follows from the sizes that the scenario asks for, not from what the engine believes it has.
"""

from specdebug.events import AfterStep, Event, Launched
from specdebug.run.oracles.base import Bench, Oracle
from specdebug.verdict.outcome import Violation


class Graphs(Oracle):
    """Holds what was launched in a step against the captured sizes. What is wrong is said once a run for each forward,
    batch size and way in which it ran: it is as wrong in every step that follows."""

    name = "graphs"
    needs = frozenset({"draft", "graphs"})
    hears = (Launched, AfterStep)
    of = ("drafts", "graphs")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._launches: list[Launched] = []
        self._said: set[tuple[str, int, int | None]] = set()

    def on(self, event: Event) -> None:
        if isinstance(event, Launched):
            self._launches.append(event)
        elif isinstance(event, AfterStep):
            launches, self._launches = self._launches, []
            for launch in launches:
                self._judge(launch, event.step)

    def _judge(self, launch: Launched, step: int) -> None:
        self.bench.looked(self.name)
        forward, size, got = ran = launch.forward, launch.batch_size, launch.captured
        expected = min((each for each in self.bench.settings.target.graphs if each >= size), default=None)
        if got != expected and ran not in self._said:
            self._said.add(ran)
            detail = f"{forward} of a batch of {size} ran {_way(got)}, expected {_way(expected)}"
            data = {"batch_size": size, "got": got, "expected": expected}
            self.bench.report(Violation("graphs", forward, step, detail, data=data))


def _way(captured: int | None) -> str:
    return "eagerly" if captured is None else f"as the graph of {captured}"

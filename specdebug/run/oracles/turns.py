"""Turns: no request waits while others are served again and again.

Prompts are served first come, first served, before decodes, and a decode step decodes all that runs; one that is
passed over gets the right tokens in the end, so nothing else can tell.
"""

from specdebug.events import Aborting, Event, Queued, Stepped
from specdebug.run.oracles.base import Bench, Oracle
from specdebug.verdict.outcome import Violation

PATIENCE = 8
"""Steps on end in which a request may be passed over, which leaves an engine from elsewhere some choice of its own."""


class TurnsOracle(Oracle):
    """Counts for each request the steps on end in which it was passed over, and reports it once."""

    name = "turns"
    needs = frozenset({"steps"})
    hears = (Queued, Stepped, Aborting)

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._passed: dict[str, int] = {}
        """By request under way, in the order in which they came: steps on end in which it was passed over."""
        self._running: set[str] = set()  # requests that decode

    def on(self, event: Event) -> None:
        match event:
            case Queued(request):
                self._passed[request.rid] = 0
            case Aborting(request):
                self._forget(request.rid)
            case Stepped() if event.kind != "idle":
                self._count(event)

    def _count(self, report: Stepped) -> None:
        self.bench.looked(self.name)
        self._running -= set(report.retracted)
        for rid in self._passed_over(report):
            self._passed[rid] += 1
            if self._passed[rid] > PATIENCE:
                kind = "decode" if rid in self._running else "prefill"
                detail = f"{rid} was passed over in {self._passed[rid]} {kind} steps on end"
                self.bench.report(Violation("ends", "turns", self.bench.step, detail, data={"rid": rid, "kind": kind}))
                self._forget(rid)
        for rid in self._passed.keys() & {*report.rids, *report.retracted}:  # one that is set back had its turn
            self._passed[rid] = 0
        self._running |= {rid for rid, tokens in report.emitted.items() if tokens and rid in self._passed}
        for rid in report.finished:
            self._forget(rid)

    def _passed_over(self, report: Stepped) -> list[str]:
        """The requests whose turn it was in a step that left them out."""
        left_out = [rid for rid in self._passed if rid not in report.rids]
        if report.kind == "decode":
            return [rid for rid in left_out if rid in self._running]
        order = list(self._passed)
        last = max((order.index(rid) for rid in report.rids if rid in self._passed), default=-1)
        return [rid for rid in left_out if rid not in self._running and order.index(rid) < last]

    def _forget(self, rid: str) -> None:
        self._passed.pop(rid, None)
        self._running.discard(rid)

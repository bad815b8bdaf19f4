"""Conservation laws of the memory pools."""

from __future__ import annotations

from specdebug.events import AfterStep
from specdebug.run.oracles.base import Oracle
from specdebug.verdict.outcome import Violation


class PoolsOracle(Oracle):
    """Adds up the books after each step that did not fail."""

    name = "pools"
    needs = frozenset({"pools"})
    hears = (AfterStep,)

    def on(self, event: AfterStep) -> None:
        for problem in () if event.failed or event.last else self.bench.session.check_pools():
            law, _, detail = problem.partition(":")
            self.bench.report(Violation("pools", law.strip(), event.step, detail.strip() or problem))

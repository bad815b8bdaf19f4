"""Conservation laws of the memory pools."""

from __future__ import annotations

from specdebug.run.oracles.base import Oracle
from specdebug.targets.base import Session
from specdebug.verdict.outcome import Violation


class PoolsOracle(Oracle):
    """Adds up the books after each step that did not fail."""

    name = "pools"
    needs = frozenset({"pools"})

    def after_step(self, session: Session, step: int, *, failed: bool, last: bool) -> None:
        for problem in () if failed or last else session.check_pools():
            law, _, detail = problem.partition(":")
            self.bench.report(Violation("pools", law.strip(), step, detail.strip() or problem))

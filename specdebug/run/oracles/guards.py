"""Guard regions: which buffer ran over into which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdebug.run.oracles.base import Oracle, OracleSettings
from specdebug.targets.base import Session
from specdebug.verdict.outcome import Violation


class Guards(Oracle):
    """Reads the guard regions after each step. An engine without guards has none to be damaged."""

    name = "guards"
    needs = frozenset({"guards"})

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.target.guards

    def after_step(self, session: Session, step: int, *, failed: bool, last: bool) -> None:
        self._report(session.check_guards(), step)

    def salvage(self, session: Session, step: int) -> None:
        self._report(session.damage_seen(), step)

    def _report(self, damage: Sequence[Any], step: int) -> None:
        for guard in damage:
            self.bench.report(Violation("guard", f"{guard.buffer}->{guard.victim}", step, str(guard)))

"""Guard regions: which buffer ran over into which."""

from __future__ import annotations

from specdebug.events import AfterStep, DeviceLost
from specdebug.run.oracles.base import Oracle, OracleSettings
from specdebug.verdict.outcome import Violation


class Guards(Oracle):
    """Reads the guard regions after each step. An engine without guards has none to be damaged."""

    name = "guards"
    needs = frozenset({"guards"})
    hears = (AfterStep, DeviceLost)

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.target.guards

    def on(self, event: AfterStep | DeviceLost) -> None:
        session = self.bench.session
        for guard in session.check_guards() if isinstance(event, AfterStep) else session.damage_seen():
            self.bench.report(Violation("guard", f"{guard.buffer}->{guard.victim}", event.step, str(guard)))

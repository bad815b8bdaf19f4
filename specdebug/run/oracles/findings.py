"""What an engine's own watch finds, as it arrives: guard regions, probes, the memory of kernels, the pools' books."""

from specdebug import async_probe, kernel_memory
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
            data = {"arena": guard.arena} if guard.arena else {}
            self.bench.report(Violation("guard", f"{guard.buffer}->{guard.victim}", event.step, str(guard), data=data))


class ProbesOracle(Oracle):
    """Passes on what recording probes found, and what kernels did outside their memory."""

    name = "probes"
    needs = frozenset({"probes"})
    hears = (AfterStep, DeviceLost)

    @classmethod
    def wanted(cls, settings: OracleSettings) -> bool:
        return settings.probes

    def on(self, event: AfterStep | DeviceLost) -> None:
        if isinstance(event, DeviceLost):
            findings = async_probe.salvage()
        else:
            for seen in kernel_memory.poll():  # first: an index that is no good was read or written by a kernel before
                self.bench.report(Violation(seen.kind, seen.site, event.step, seen.message(), seen.count))
            findings = async_probe.drain() if event.failed or event.last else async_probe.poll()
        elsewhere = [] if isinstance(event, DeviceLost) else self.bench.session.findings()
        for rank, found in (*((None, each) for each in findings), *elsewhere):
            data = {"index": found.index, "value": found.value, "bound": found.bound}
            data |= {} if rank is None else {"rank": rank}
            # A device's findings may arrive some steps after the one that they were made in.
            made_in, count = found.step or event.step, found.count or 1
            self.bench.report(Violation(found.kind, found.site, made_in, found.message(), count, data))


class PoolsOracle(Oracle):
    """Adds up the books after each step that did not fail."""

    name = "pools"
    needs = frozenset({"pools"})
    hears = (AfterStep,)

    def on(self, event: AfterStep) -> None:
        for problem in () if event.failed or event.last else self.bench.session.check_pools():
            law, _, detail = problem.partition(":")
            self.bench.report(Violation("pools", law.strip(), event.step, detail.strip() or problem))

"""The engine that a detection matrix injects into, its workers, and the sites at which a class of faults can act."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specdebug.base.abilities import DEFAULT
from specdebug.base.errors import SpecDebugError
from specdebug.engine.workers.registry import LINEUP, WorkerEntry
from specdebug.faults.minimal import BUSY, minimal
from specdebug.faults.model import NEEDS, Fault, FaultClass, Need
from specdebug.targets.base import FaultsThere
from specdebug.targets.options import OURS
from specdebug.targets.registry import find_target
from specdebug.targets.settings import TargetChoice

CPU = "cpu"


@dataclass(frozen=True)
class Ground:
    """An engine on ``device``, ``dtype`` in place of the minimal scenarios' own. ``workers``: those of our own engine
    that serve. Raises SpecDebugError for a target in which no fault can act."""

    device: str = CPU
    target: TargetChoice = DEFAULT
    dtype: str | None = None
    workers: tuple[WorkerEntry, ...] = tuple(LINEUP.values())

    def __post_init__(self) -> None:
        if self.elsewhere and self._there is None:
            raise SpecDebugError(f"no fault can act in {self.target}")

    @property
    def elsewhere(self) -> bool:
        """Return True if it is not our own engine."""
        return self.target != DEFAULT

    @property
    def served_by(self) -> tuple[WorkerEntry | None, ...]:
        """The workers; None stands for the one of another engine."""
        return (None,) if self.elsewhere else self.workers

    def minimal(self, kind: FaultClass, site: str | None, worker: WorkerEntry | None) -> tuple[dict[str, Any], Fault]:
        """A scenario in the file's grammar that a class takes effect in there, and the fault to lay over it."""
        if (there := self._there) is None:
            return minimal(kind, site, worker=worker)
        scenario, fault = minimal(kind, site, there.new_tokens)
        scenario["engine"] |= there.options(kind.name, site)
        return scenario, replace(fault, step=there.busy if fault.step == BUSY else fault.step)

    @property
    def overrides(self) -> dict[str, Any]:
        """Engine options over those of every arm."""
        return {"device": self.device, **({} if self.dtype is None else {"dtype": self.dtype})}

    def why_left_out(self, kind: FaultClass, worker: WorkerEntry | None) -> str:
        """Say why a class has no row."""
        there = self._there
        if there is None and (need := self._lacking(kind, worker)) is not None:
            return f"needs {NEEDS[need]}"
        if there is None and not self._passed(kind, worker):
            return f"never passes {kind.sites[0]}"
        if there is None:
            return "acts inside captured graphs only"
        return there.lacks(kind.name) or f"no meaning in {self.target}"

    def sites(self, kind: FaultClass, worker: WorkerEntry | None) -> tuple[str, ...] | None:
        """The sites at which a class can act; empty for one that acts at none, None for one that cannot act."""
        if self._there is None and self._lacking(kind, worker) is not None:
            return None
        found = self._passed(kind, worker) if self._there is None else self._there.sites(kind.name)
        if found and self.device != CPU:
            # what is captured calls nothing on the host
            found = tuple(site for site in found if site not in kind.captured_sites)
        return found if found or not kind.sites else None

    def _lacking(self, kind: FaultClass, worker: WorkerEntry | None) -> Need | None:
        """The first need of a class that an engine of this worker does not meet."""
        return OURS.lacking(minimal(kind, worker=worker)[0]["engine"], kind)

    def _passed(self, kind: FaultClass, worker: WorkerEntry | None) -> tuple[str, ...]:
        """The sites of a class that a worker passes."""
        return tuple(site for site in kind.sites if worker is None or worker.passes(site))

    @property
    def _there(self) -> FaultsThere | None:
        return find_target(self.target).traits.faults if self.elsewhere else None

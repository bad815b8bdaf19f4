"""The engine that a detection matrix injects into, and the sites of it at which a class of faults can act."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specdebug.errors import SpecDebugError
from specdebug.faults.minimal import BUSY, minimal
from specdebug.faults.model import Fault, FaultClass
from specdebug.scenario.servers import TargetChoice
from specdebug.targets.registry import DEFAULT, find_target
from specdebug.targets.serving import FaultsThere, faults_there

CPU = "cpu"


@dataclass(frozen=True)
class Ground:
    """An engine on ``device``, ``dtype`` in place of the minimal scenarios' own. Raises SpecDebugError for a target in
    which no fault can act."""

    device: str = CPU
    target: TargetChoice = DEFAULT
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.elsewhere and self._there is None:
            raise SpecDebugError(f"no fault can act in {self.target}")

    @property
    def elsewhere(self) -> bool:
        """Return True if it is not our own engine."""
        return self.target != DEFAULT

    def minimal(self, kind: FaultClass, site: str | None) -> tuple[dict[str, Any], Fault]:
        """A scenario in the file's grammar that a class takes effect in there, and the fault to lay over it."""
        if (there := self._there) is None:
            return minimal(kind, site)
        scenario, fault = minimal(kind, site, there.new_tokens)
        scenario["engine"] |= there.options(kind.name, site)
        return scenario, replace(fault, step=there.busy if fault.step == BUSY else fault.step)

    @property
    def overrides(self) -> dict[str, Any]:
        """Engine options over those of every arm."""
        return {"device": self.device, **({} if self.dtype is None else {"dtype": self.dtype})}

    def why_left_out(self, kind: FaultClass) -> str:
        """Say why a class has no row."""
        if (there := self._there) is None:
            return "acts inside captured graphs only"
        return there.lacks(kind.name) or f"no meaning in {self.target}"

    def sites(self, kind: FaultClass) -> tuple[str, ...] | None:
        """The sites at which a class can act; empty for one that acts at none, None for one that cannot act."""
        found = kind.sites if self._there is None else self._there.sites(kind.name)
        if found and self.device != CPU:
            # what is captured calls nothing on the host
            found = tuple(site for site in found if site not in kind.captured_sites)
        return found if found or not kind.sites else None

    @property
    def _there(self) -> FaultsThere | None:
        return faults_there(find_target(self.target)) if self.elsewhere else None

"""The order by which an engine's process is started: which engine, with which fixes reverted, faults and probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdebug.faults.model import Fault
    from specdebug.patching.toggles import Toggle
    from specdebug.scenario.packs import ProbePack


@dataclass(frozen=True)
class Launch:
    """``options``: of the engine. ``mode``: of every probe, over the packs' own (record or assert)."""

    options: Mapping[str, Any]
    toggles: tuple[Toggle, ...] = ()
    packs: tuple[ProbePack, ...] = ()
    faults: tuple[Fault, ...] = ()
    mode: str | None = None

    @property
    def seed(self) -> int:
        return int(self.options.get("seed", 0))

"""The servers that runs of a search start, kept for those that come after."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from specdebug.campaign.loops.replay import ArmRun, RunContent, run_as
from specdebug.targets.launch.keeper import MAX_IDLE
from specdebug.targets.launch.lease import ServerKeeper
from specdebug.targets.settings import StartedServer
from specdebug.workers.job import Job


@dataclass(frozen=True)
class KeptRun(ArmRun):
    """An arm run that takes its server from who keeps it at this address, and gives it back."""

    keeper: str | None = None

    def job(self, library: RunContent) -> Job:
        job = super().job(library)
        return dataclasses.replace(job, payload={**job.payload, "keeper": self.keeper})


class KeptServers:
    """Starts the process that keeps servers once the first run needs one. ``jobs``: runs at a time, each of which may
    come back for its server."""

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs
        self._keeper: ServerKeeper | None = None

    def address_for(self, run: ArmRun) -> str | None:
        """Return the address of who keeps the servers that runs start; None for a run that starts none. Raises
        NoServer."""
        if not isinstance(run.target, StartedServer):
            return None
        if self._keeper is None:
            self._keeper = ServerKeeper(max(MAX_IDLE, self._jobs))
        return self._keeper.address

    def kept(self, run: ArmRun) -> KeptRun:
        """Return the run on a server that is kept. Raises NoServer."""
        return run_as(KeptRun, run, keeper=self.address_for(run))

    def close(self) -> None:
        """End every server. May be called more than once."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

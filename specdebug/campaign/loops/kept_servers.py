"""The servers that runs of a search start, kept for those that come after."""

from __future__ import annotations

import dataclasses

from specdebug.campaign.loops.replay import ArmRun
from specdebug.targets.launch.keeper import MAX_IDLE
from specdebug.targets.launch.lease import ServerKeeper
from specdebug.targets.settings import StartedServer


class KeptServers:
    """Starts the process that keeps servers once the first run needs one. ``jobs``: runs at a time, each of which may
    come back for its server."""

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs
        self._keeper: ServerKeeper | None = None

    def kept(self, run: ArmRun) -> ArmRun:
        """Return the run on a server that is kept, if it starts one. Raises NoServer."""
        if not isinstance(run.target, StartedServer):
            return run
        if self._keeper is None:
            self._keeper = ServerKeeper(max(MAX_IDLE, self._jobs))
        return dataclasses.replace(run, keeper=self._keeper.address)

    def close(self) -> None:
        """End every server. May be called more than once."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

"""The servers that runs of a search start, kept for those that come after."""

from __future__ import annotations

from specdebug.loops.replay import ArmRun
from specdebug.scenario.servers import StartedServer
from specdebug.targets.launch.keeper import MAX_IDLE
from specdebug.targets.launch.lease import ServerKeeper


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

    def close(self) -> None:
        """End every server. May be called more than once."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

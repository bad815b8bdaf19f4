"""The servers that runs of a search start, kept for those that come after."""

from __future__ import annotations

from specdebug.loops.replay import ArmRun
from specdebug.scenario.servers import StartedServer
from specdebug.targets.launch.lease import ServerKeeper


class KeptServers:
    """Starts the process that keeps servers once the first run needs one."""

    def __init__(self) -> None:
        self._keeper: ServerKeeper | None = None

    def address_for(self, run: ArmRun) -> str | None:
        """Return the address of who keeps the servers that runs start; None for a run that starts none. Raises
        NoServer."""
        if not isinstance(run.target, StartedServer):
            return None
        if self._keeper is None:
            self._keeper = ServerKeeper()
        return self._keeper.address

    def close(self) -> None:
        """End every server. May be called more than once."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

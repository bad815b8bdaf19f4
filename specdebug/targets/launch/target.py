"""The target ``launch``: a server that a command starts, for each arm, and that is ended after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdebug.base import features
from specdebug.base.abilities import Ability
from specdebug.base.engine_flags import arguments_of
from specdebug.targets.base import Asked, Opening, Target, Traits
from specdebug.targets.http.target import AT_MOST, asked_of_server, key_of, open_session
from specdebug.targets.launch.process import command_of
from specdebug.targets.requests import SessionFailed
from specdebug.targets.settings import SERVE, LaunchedServer

if TYPE_CHECKING:
    from specdebug.targets.http.session import HttpSession
    from specdebug.targets.launch.keeper import LentServer
    from specdebug.targets.launch.process import ServerProcess

STARTED: frozenset[Ability] = AT_MOST | {"reverts"}
SHARED_SEED = 0
"""The seed of a server that trials of many seeds share: theirs are in what they ask of it."""


class LaunchTarget(Target):
    """A server that a command starts."""

    traits = Traits("launch", STARTED, reverts=True, features=features.ALL)

    def __init__(self, settings: LaunchedServer) -> None:
        self._settings: LaunchedServer = settings

    def asked(self, options: Mapping[str, Any]) -> Asked:
        asked = asked_of_server(self._settings, options)
        if self._settings.command != SERVE:
            return asked
        from specdebug.targets.options import OURS

        OURS.read(options)  # what cannot be is told where it stands, before anything is started
        arguments_of(options)
        return replace(asked, unused=(), probed=True)

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> HttpSession:
        from specdebug.targets.http.server import split
        from specdebug.targets.launch.process import StartFailed

        try:
            server = self._started(options, seed, opening)
        except StartFailed as error:
            kind, site = split(error.signature)
            raise SessionFailed(str(error), site, kind) from None
        lasts = self._settings.log is not None or opening.over_there.keeper is not None
        opening.say("server_log", path=str(server.log.path), lasts=lasts)
        try:
            return open_session(server.url, self._settings, self.asked(options), opening, server)
        except BaseException:
            server.release(False)
            raise

    def _started(self, options: Mapping[str, Any], seed: int, opening: Opening) -> ServerProcess | LentServer:
        """A server that is ready: this worker's own, or one that a search's trials share. Raises NoServer, or
        StartFailed."""
        from specdebug.targets.launch.keeper import LentServer, ServerWish
        from specdebug.targets.launch.process import ServerProcess

        settings, said = self._settings, opening.busy.said
        key, there = key_of(settings), opening.over_there
        headers = (("Authorization", f"Bearer {key}"),) if key else ()
        ready = (settings.ready, settings.ready_timeout_s)
        said("starting a server")
        if there.keeper is not None:
            command = command_of(settings, options, SHARED_SEED, there)
            return LentServer(there.keeper, ServerWish(command, opening.label, settings.log, *ready, headers), said)
        server = ServerProcess(command_of(settings, options, seed, there), opening.label, settings.log)
        try:
            server.wait_ready(*ready, said, headers)
        except BaseException:
            server.end()
            raise
        return server

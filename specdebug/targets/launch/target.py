"""The target ``launch``: a server that is started for each arm, and ended after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdebug.engine_flags import arguments_of
from specdebug.targets.base import Ability, Asked, Opening
from specdebug.targets.http.target import AT_MOST, asked_of_server, key_of, open_session
from specdebug.targets.launch.command import SERVE, command_of
from specdebug.targets.serving import LaunchSettings, SessionFailed

if TYPE_CHECKING:
    from specdebug.targets.http.session import HttpSession
    from specdebug.targets.launch.lease import LentServer
    from specdebug.targets.launch.process import ServerProcess

SHARED_SEED = 0
"""The seed of a server that trials of many seeds share: theirs are in what they ask of it."""


class LaunchTarget:
    """A server that a command starts."""

    name = "launch"
    shows: frozenset[Ability] = AT_MOST | {"reverts"}
    elsewhere = True

    def __init__(self, settings: LaunchSettings) -> None:
        self._settings = settings

    @property
    def own(self) -> bool:
        """Return True if the server is ours, which has the scenario's engine options."""
        return self._settings.command == SERVE

    def asked(self, options: Mapping[str, Any]) -> Asked:
        asked = asked_of_server(self._settings, options)
        if self.own:
            from specdebug.engine.config import EngineConfig

            EngineConfig.from_dict(options)  # what cannot be is told where it stands, before anything is started
            arguments_of(options)
            return replace(asked, unused=(), probed=True)
        return asked

    def warm(self, options: Mapping[str, Any]) -> None:
        """Do nothing: each server loads its own."""

    def cool(self) -> None:
        """Do nothing."""

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> HttpSession:
        from specdebug.targets.http.host import split
        from specdebug.targets.launch.process import StartFailed

        try:
            server = self._started(options, seed, opening)
        except StartFailed as error:
            kind, site = split(error.signature)
            raise SessionFailed(str(error), site, kind) from None
        opening.say("note", text=f"the server's log is {server.log_path}")
        try:
            return open_session(server.url, self._settings, self.asked(options), opening, server)
        except BaseException:
            server.release(False)
            raise

    def _started(self, options: Mapping[str, Any], seed: int, opening: Opening) -> ServerProcess | LentServer:
        """A server that is ready: this worker's own, or one that a search's trials share. Raises NoServer, or
        StartFailed."""
        from specdebug.targets.launch.keeper import ServerWish
        from specdebug.targets.launch.lease import LentServer
        from specdebug.targets.launch.process import ServerProcess

        settings = self._settings
        key = key_of(settings)
        headers = (("Authorization", f"Bearer {key}"),) if key else ()
        opening.busy.said("starting a server")
        there = opening.over_there
        if there.keeper is not None:
            command = command_of(settings, options, SHARED_SEED, there)
            wish = ServerWish(
                command.words,
                dict(command.env),
                opening.label,
                settings.log,
                settings.ready,
                settings.ready_timeout_s,
                headers,
            )
            return LentServer(there.keeper, wish, opening.busy.said)
        server = ServerProcess(command_of(settings, options, seed, there), opening.label, settings.log)
        try:
            server.wait_ready(settings.ready, settings.ready_timeout_s, opening.busy.said, headers)
        except BaseException:
            server.end()
            raise
        return server

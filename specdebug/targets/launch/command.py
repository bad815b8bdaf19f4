"""The command that starts a server: the user's own words, or ours for ``serve``."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specdebug.base.engine_flags import arguments_of
from specdebug.base.errors import SpecDebugError
from specdebug.base.interpreters import own_python
from specdebug.targets.base import OverThere
from specdebug.targets.serving import NoServer
from specdebug.targets.settings import SERVE, LaunchedServer

REVERTS = "SGLANG_DEBUG_REVERT_PR"
"""The variable that tells an engine which fixes to leave out."""
SCRATCH = "{scratch}"
_SERVE = "from specdebug.__main__ import main; main()"


@dataclass(frozen=True)
class StartCommand:
    """How a server is started, but for its port, which is free only when it is looked for, and a folder of its own.

    ``{port}`` in a word and ``{scratch}`` in a variable stand for them; the folder goes when the server does. ``key``:
    equal for commands that start the same server.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def key(self) -> str:
        """The same for equal commands."""
        return repr((self.words, sorted(self.env.items())))

    def on(self, port: int) -> list[str]:
        """The words for a port."""
        return [word.replace("{port}", str(port)) for word in self.words]

    @property
    def wants_scratch(self) -> bool:
        """Return True if some variable names the folder."""
        return any(SCRATCH in value for value in self.env.values())

    def env_in(self, scratch: str) -> dict[str, str]:
        """The variables for a folder."""
        return {name: value.replace(SCRATCH, scratch) for name, value in self.env.items()}


def command_of(settings: LaunchedServer, options: Mapping[str, Any], seed: int, there: OverThere) -> StartCommand:
    """The command for an arm. Raises SpecDebugError for one that cannot be."""
    env = {name: value for name, value in os.environ.items() if name != REVERTS} | dict(settings.variables)
    numbers = ",".join(map(str, there.reverts))
    if settings.command == SERVE:
        flags = arguments_of({"seed": seed, **options})
        more = [("--revert", numbers)] if numbers else []
        more += [("--probes", name) for name in there.probes]
        more += [("--mode", there.mode)] if there.mode else []
        more += [("--content", folder) for folder in there.content]
        own = own_python(_SERVE, "serve", "--port", "{port}", *flags)
        return StartCommand((*own, *(word for pair in more for word in pair)), env)
    try:
        words = tuple(shlex.split(settings.command))
    except ValueError as error:
        raise SpecDebugError(f"target.launch: {error} in {settings.command!r}") from None
    return StartCommand(words, env | ({REVERTS: numbers} if numbers else {}))


PORTS = range(20000, 32000)
"""Below those that Linux gives to connections, and so far from the last one that a server may add to its own, as SGLang
does for gRPC."""


def free_port() -> int:
    """A port of this machine that is not listened on. Raises NoServer."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise NoServer(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")

"""Targets that are releases of other engines, installed here by ``specdebug engines`` and started for each arm."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.base.files import cache_folder
from specdebug.base.interpreters import ENGINE_ENV
from specdebug.patching.toggles import load_registry
from specdebug.targets.base import Asked, Opening, OverThere
from specdebug.targets.http.target import asked_of_server
from specdebug.targets.inside import VARIABLE
from specdebug.targets.installs.fit import Mends, mends_of, patches_of
from specdebug.targets.installs.store import Installed, find_installed, store_folder
from specdebug.targets.launch.command import REVERTS, SCRATCH
from specdebug.targets.launch.target import StartedTarget
from specdebug.targets.options import OURS
from specdebug.targets.settings import ReleasedEngine

if TYPE_CHECKING:
    from specdebug.targets.http.session import HttpSession

_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch keeps what it has compiled, for servers to come."""


class InstalledTarget(StartedTarget):
    """A release of an engine. A class that derives from it maps the options (:meth:`notes`, ``command``)."""

    def __init__(self, settings: ReleasedEngine) -> None:
        self._settings: ReleasedEngine = settings

    @abstractmethod
    def notes(self, options: Mapping[str, Any], here: Installed) -> tuple[str, ...]:
        """What of some options is otherwise there, a line each. Raises SpecDebugError for what cannot be there."""

    def reserved(self, options: Mapping[str, Any]) -> int:
        """Tokens of the context that no request may have."""
        return 0

    def interprets(self, here: Installed) -> bool:
        """Return True if its Triton kernels run interpreted, where their memory can be looked at."""
        return False

    def asked(self, options: Mapping[str, Any]) -> Asked:
        config = OURS.read(options)  # what cannot be is told where it stands, before anything is started
        context = config.context_length - self.reserved(options)
        return replace(asked_of_server(self._settings, options), unused=(), context_length=context)

    def warm(self, options: Mapping[str, Any]) -> None:
        """Look up how the options and our probe sites fit the release, and import what asks a server."""
        for module in ("specdebug.targets.http.client", "httpcore", "anyio._backends._asyncio"):
            import_module(module)
        self.notes(options, self.installed())

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> HttpSession:
        here = self.installed()
        for note in (*filter(None, (here.taken_as,)), *self.notes(options, here), *self._mended(here, opening)):
            opening.say("note", text=note)
        if opening.over_there.kernels and not self.interprets(here):
            opening.say("note", text="kernels: none of this engine's run interpreted here, so none is looked at")
        return super().open(options, seed, opening)

    def _mends(self, here: Installed, there: OverThere) -> Mends:
        """The fixes that the release lacks and is given: a bug that is known must not hide one that is not."""
        if not self._settings.mends:
            return Mends()
        return mends_of(here, there.toggles, load_registry(there.content).all)

    def _mended(self, here: Installed, opening: Opening) -> Iterator[str]:
        """Which they are, in a line, and which of them do not fit."""
        mends = self._mends(here, opening.over_there)
        if mends.numbers:
            numbers = ", ".join(map(str, mends.numbers))
            yield f"known bugs of {here.release} are mended: {numbers}; `mends: false` in the target leaves them in"
        yield from mends.left_out

    def installed(self) -> Installed:
        """The environment. Raises StoreError where there is none."""
        store = self._settings.store
        return find_installed(store_folder(None if store is None else Path(store)), self._settings.named)

    def environment(
        self, site: Path, here: Installed, there: OverThere, own: Mapping[str, str], **inside: Any
    ) -> dict[str, str]:
        """The variables of its processes: ours, the engine's ``own``, what is wanted ``inside``, and the user's. Raises
        SpecDebugError where a fix cannot be reverted."""
        env = {name: value for name, value in os.environ.items() if name not in (REVERTS, "PYTHONPATH")}
        patches = [*patches_of(here, there.toggles), *self._mends(here, there).patches]
        wanted = {"device": here.device, "release": here.version, "reverts": patches, **inside}
        ours = {
            **ENGINE_ENV,
            "PYTHONPATH": str(site),
            VARIABLE: json.dumps(wanted),
            "TMPDIR": SCRATCH,
            # torch's own choice is a folder of all temporary files, whose name anybody can guess and make first
            _COMPILED: os.environ.get(_COMPILED) or str(cache_folder("torchinductor")),
        }
        return env | dict(own) | ours | dict(self._settings.variables)

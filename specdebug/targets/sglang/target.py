"""The target ``sglang``: a release of SGLang that is installed here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdebug.assets import checkpoint_path
from specdebug.engine.config import EngineConfig
from specdebug.installs.recipe import recipes
from specdebug.installs.store import Installed, find_installed, store_folder
from specdebug.targets.base import Asked, Opening, OverThere
from specdebug.targets.http.target import asked_of_server
from specdebug.targets.launch.command import REVERTS, StartCommand
from specdebug.targets.launch.target import StartedTarget
from specdebug.targets.patches import patches_of
from specdebug.targets.serving import EngineSettings
from specdebug.targets.sglang.checkpoints import draft_folder
from specdebug.targets.sglang.flags import ALWAYS_ENV, ON_CPU_ENV, Mapped, mapped, reserved_tokens
from specdebug.targets.sglang.inside.plugin import VARIABLE
from specdebug.targets.sglang.site import make_site

if TYPE_CHECKING:
    from specdebug.targets.http.session import HttpSession


class SglangTarget(StartedTarget):
    """A release of SGLang."""

    name = "sglang"

    def __init__(self, settings: EngineSettings) -> None:
        self._settings: EngineSettings = settings

    def asked(self, options: Mapping[str, Any]) -> Asked:
        config = EngineConfig.from_dict(options)  # what cannot be is told where it stands, before anything is started
        room = config.context_length - reserved_tokens(config)
        return replace(asked_of_server(self._settings, options), unused=(), context_length=room)

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> HttpSession:
        for note in self._mapped(options, seed, self._installed()).notes:
            opening.say("note", text=f"engine.{note}")
        return super().open(options, seed, opening)

    def command(self, options: Mapping[str, Any], seed: int, there: OverThere) -> StartCommand:
        """Raises StoreError where the release is not installed, ConfigError."""
        here = self._installed()
        cpu = here.device == "cpu"
        site = make_site(here.folder, _stand_ins(here), cpu=cpu)
        words = (
            here.python, "-m", "sglang.launch_server", "--port", "{port}",
            *self._mapped(options, seed, here).words, *self._settings.arguments,
        )  # fmt: skip
        return StartCommand(words, self._env(site, here, there))

    def _installed(self) -> Installed:
        store = self._settings.store
        return find_installed(store_folder(None if store is None else Path(store)), self._settings.named)

    def _mapped(self, options: Mapping[str, Any], seed: int, here: Installed) -> Mapped:
        """The command line, checkpoints by their folders."""
        config = EngineConfig.from_dict(options)
        folders: dict[str, Any] = {"seed": seed, "model": str(checkpoint_path(config.model).resolve())}
        if config.speculative is not None and config.draft_model is not None:
            draft = draft_folder(config.draft_model, here.folder / "checkpoints")
            folders["speculative"] = {**options["speculative"], "draft_model": str(draft)}
        return mapped({**options, **folders}, cpu=here.device == "cpu")

    def _env(self, site: Path, here: Installed, there: OverThere) -> dict[str, str]:
        cpu = here.device == "cpu"
        inside = {"device": here.device, "reverts": patches_of(here, there.toggles)}
        env = {name: value for name, value in os.environ.items() if name not in (REVERTS, "PYTHONPATH")}
        env |= ALWAYS_ENV | (ON_CPU_ENV if cpu else {})
        return env | {"PYTHONPATH": str(site), VARIABLE: json.dumps(inside)} | dict(self._settings.env)


def _stand_ins(here: Installed) -> tuple[str, ...]:
    """Modules that empty ones stand in for: those of the recipe, also in an environment of the user's own."""
    of_engine = [each for each in recipes() if each.engine == here.engine and each.device == here.device]
    exact = [each for each in of_engine if each.version == here.version]
    return (exact or of_engine)[0].stand_ins if of_engine else ()

"""The target ``vllm``: a release of vLLM that is installed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from specdebug.base.assets import checkpoint_path
from specdebug.base.interpreters import engine_python
from specdebug.targets.base import Asked, OverThere, Traits
from specdebug.targets.installed import InstalledTarget
from specdebug.targets.installs.import_folder import make_import_folder
from specdebug.targets.installs.store import Installed
from specdebug.targets.launch.command import StartCommand
from specdebug.targets.launch.target import STARTED
from specdebug.targets.options import OURS
from specdebug.targets.vllm.checkpoints import draft_folder
from specdebug.targets.vllm.options import VllmOptions, mapped

ALWAYS_ENV = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
ON_CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""GiB; how much of it is used says the number of blocks."""
SERVE = "specdebug.targets.vllm.inside.serve"


class VllmTarget(InstalledTarget):
    """A release of vLLM."""

    traits = Traits("vllm", STARTED, reverts=True, records=True)

    def asked(self, options: Mapping[str, Any]) -> Asked:
        mapped(OURS.read(options), "", "", cpu=True)  # what it cannot do is told before anything is started
        return replace(super().asked(options), probed=True)

    def notes(self, options: Mapping[str, Any], here: Installed) -> tuple[str, ...]:
        return tuple(f"engine.{note}" for note in self._mapped(options, here).notes)

    def command(self, options: Mapping[str, Any], seed: int, there: OverThere) -> StartCommand:
        """Raises StoreError where the release is not installed, SpecDebugError."""
        here = self.installed()
        arguments = {**self._mapped(options, here).arguments, "seed": seed}
        own = ALWAYS_ENV | (ON_CPU_ENV if here.device == "cpu" else {})
        wanted = {"engine": arguments, "probes": [asdict(rule) for rule in there.rules], "tape": there.tape}
        env = self.environment(make_import_folder(here.folder, {}), here, there, own, **wanted)
        words = engine_python(here.python, "-m", SERVE, "--port", "{port}", *self._settings.arguments)
        return StartCommand(tuple(words), env)

    def _mapped(self, options: Mapping[str, Any], here: Installed) -> VllmOptions:
        """The arguments, checkpoints by their folders."""
        config = OURS.read(options)
        draft = None
        if config.draft_model is not None:
            draft = str(draft_folder(config.draft_model, config.model, here.folder / "checkpoints"))
        return mapped(config, str(checkpoint_path(config.model).resolve()), draft, cpu=here.device == "cpu")

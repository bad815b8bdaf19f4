"""The target ``sglang``: a release of SGLang that is installed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from specdebug.base.abilities import INSIDE
from specdebug.base.assets import checkpoint_path
from specdebug.base.interpreters import engine_python
from specdebug.targets.base import Asked, OverThere, Traits
from specdebug.targets.installed import InstalledTarget
from specdebug.targets.installs.fit import added_sites, sites_of, source_of
from specdebug.targets.installs.import_folder import make_import_folder
from specdebug.targets.installs.recipe import recipes
from specdebug.targets.installs.release import order
from specdebug.targets.installs.store import Installed, StoreError
from specdebug.targets.launch.command import StartCommand
from specdebug.targets.launch.target import STARTED
from specdebug.targets.options import OURS
from specdebug.targets.sglang.checkpoints import draft_folder
from specdebug.targets.sglang.faults import SglangFaults, plain_fault
from specdebug.targets.sglang.flags import (
    ALWAYS_ENV,
    NATIVE_MOVES,
    ON_CPU_ENV,
    Mapped,
    mapped,
    require_known,
    reserved_tokens,
)
from specdebug.targets.sglang.import_folder import files_to_import


class SglangTarget(InstalledTarget):
    """A release of SGLang."""

    @property
    def traits(self) -> Traits:
        """Its faults are those that can act in the release that is named, else in the newest that is installed."""
        return Traits(
            "sglang",
            STARTED | INSIDE | {"faults"},
            reverts=True,
            records=True,
            slowness=5.0,  # its metadata kernels are interpreted on a CPU
            faults=SglangFaults(self._settings.named.version or self._newest()),
        )

    def asked(self, options: Mapping[str, Any]) -> Asked:
        require_known(options)  # what it cannot do is told before anything is started
        ours = OURS.asked(options)
        asked = replace(super().asked(options), draft_model=ours.draft_model, algorithm=ours.algorithm)
        # Its sampler cuts by both at once; a verify, which samples all tokens but the first, by one after the other.
        return replace(asked, probed=True, joint="first" if asked.drafts else "all")

    def notes(self, options: Mapping[str, Any], here: Installed) -> tuple[str, ...]:
        return (
            *(f"engine.{note}" for note in self._mapped(options, 0, here).notes),
            *sites_of(here, added_sites(here))[1],
        )

    def interprets(self, here: Installed) -> bool:
        return here.device == "cpu"

    def reserved(self, options: Mapping[str, Any]) -> int:
        return reserved_tokens(options)

    def command(self, options: Mapping[str, Any], seed: int, there: OverThere) -> StartCommand:
        """Raises StoreError where the release is not installed, SpecDebugError."""
        here = self.installed()
        cpu = here.device == "cpu"
        site = make_import_folder(here.folder, files_to_import(stand_ins_of(here), cpu=cpu))
        flags = (*self._mapped(options, seed, here).words, *self._settings.arguments)
        words = tuple(engine_python(here.python, "-m", "sglang.launch_server", "--port", "{port}", *flags))
        own = ALWAYS_ENV | (ON_CPU_ENV if cpu else {}) | (NATIVE_MOVES if cpu and not there.kernels else {})
        probes = [asdict(rule) for rule in there.rules]
        sites = sites_of(here, added_sites(here))[0] if probes or there.faults else []
        kernels = [asdict(rule) for rule in there.kernels]
        wanted: dict[str, Any] = {"probes": probes, "kernels": kernels, "sites": sites, "tape": there.tape}
        wanted["shows"] = sorted(there.shows)
        if there.faults:
            wanted |= {"faults": [plain_fault(each) for each in there.faults], "seed": there.seed}
        return StartCommand(words, self.environment(site, here, there, own, **wanted))

    def _newest(self) -> str | None:
        """The version that a name without one means; None where nothing is installed, which the run will say."""
        try:
            return self.installed().version
        except StoreError:
            return None

    def _mapped(self, options: Mapping[str, Any], seed: int, here: Installed) -> Mapped:
        """The command line, checkpoints by their folders."""
        config = OURS.read(options)
        folders: dict[str, Any] = {"seed": seed, "model": str(checkpoint_path(config.model).resolve())}
        if config.speculative is not None and config.draft_model is not None:
            draft = draft_folder(config.draft_model, here.folder / "checkpoints")
            folders["speculative"] = {**options["speculative"], "draft_model": str(draft)}
        return mapped({**options, **folders}, cpu=here.device == "cpu", has=source_of(here).has)


def stand_ins_of(here: Installed) -> tuple[str, ...]:
    """Modules that empty ones stand in for: those of the recipe; of a release that has none, those of any, for one that
    is there is taken."""
    mine = [each for each in recipes() if each.engine == here.engine and each.device == here.device]
    own = [each for each in mine if order(each.version) == order(here.version)]
    return tuple(sorted({name for each in own or mine for name in each.stand_ins}))

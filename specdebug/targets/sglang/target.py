"""The target ``sglang``: a release of SGLang that is installed here, started with a scenario's engine options."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import specdebug
from specdebug.base.abilities import INSIDE
from specdebug.base.assets import checkpoint_path
from specdebug.base.interpreters import engine_python
from specdebug.targets.base import Asked, OverThere, Traits
from specdebug.targets.installed import InstalledTarget, config_of, make_import_folder, remade
from specdebug.targets.installs.fit import added_sites, sites_of, source_of
from specdebug.targets.installs.release import order, recipes
from specdebug.targets.installs.store import Installed, StoreError
from specdebug.targets.launch.process import StartCommand
from specdebug.targets.launch.target import STARTED
from specdebug.targets.options import OURS
from specdebug.targets.sglang.faults import SglangFaults, plain_fault
from specdebug.targets.sglang.flags import (
    ALWAYS_ENV,
    NATIVE_MOVES,
    ON_CPU_ENV,
    mapped,
    require_known,
    reserved_tokens,
)


def draft_folder(name: str, below: Path) -> Path:
    """The folder of a draft head for SGLang: its own, or for one with tied embeddings one made ``below``, of links and
    a config that does not tie them: it deletes a head's embedding and then its ``lm_head``, and where these are one the
    second deletion fails. Either way both are the target's from then on. Raises SpecDebugError."""
    path = checkpoint_path(name).resolve()
    config = config_of(path)
    return remade(path, {**config, "tie_word_embeddings": False}, below) if config.get("tie_word_embeddings") else path


PLUGINS = "sglang.srt.plugins"
"""SGLang's group of entry points."""
_INSIDE = "specdebug.targets.sglang.inside"
_FLASH_ATTN = f'''"""FlashAttention 3 without a GPU."""
from {_INSIDE}.attention import flash_attn_with_kvcache
from {_INSIDE}.launches import refusing


def is_fa3_supported(device=None):
    return True


def get_scheduler_metadata(*_, **__):
    return None


flash_attn_varlen_func = refusing("flash_attn_varlen_func")
'''
_FLASH_MLA = ("sgl_kernel/flash_mla.py", "flash_mla/__init__.py", "flash_mla/flash_mla_interface.py")


def files_to_import(stand_ins: Sequence[str], *, cpu: bool) -> dict[str, str]:
    """What SGLang's processes find beside our package, by path: metadata of its plugin and, on a CPU, ``sgl_kernel``
    and a start-up module that puts empty modules in the place of unused ones."""
    metadata = f"specdebug_inside-{specdebug.__version__}.dist-info"
    files = {
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: specdebug-inside\nVersion: {specdebug.__version__}\n",
        f"{metadata}/entry_points.txt": f"[{PLUGINS}]\nspecdebug = {_INSIDE}.plugin:register\n",
    }
    if cpu:
        refused = f"from {_INSIDE}.sgl_kernel import __getattr__\n"
        files["sgl_kernel/__init__.py"] = f"from {_INSIDE}.sgl_kernel import *\n{refused}"
        files["sgl_kernel/flash_attn.py"] = _FLASH_ATTN
        files |= dict.fromkeys(_FLASH_MLA, refused)  # what decides about graphs imports them to ask for a class
        empty = f"from {_INSIDE}.empty_modules import stand_in_for\n\nstand_in_for({list(stand_ins)!r})\n"
        files["sitecustomize.py"] = empty
    return files


class SglangTarget(InstalledTarget):
    """A release of SGLang."""

    @property
    def traits(self) -> Traits:
        """Its faults are those that can act in the release that is named, else in the newest that is installed."""
        release = self._settings.named.version
        if release is None:
            with contextlib.suppress(StoreError):  # nothing is installed, which the run will say
                release = self.installed().version
        return Traits(
            "sglang",
            STARTED | INSIDE | {"faults"},
            reverts=True,
            records=True,
            slowness=5.0,  # its metadata kernels are interpreted on a CPU
            faults=SglangFaults(release),
        )

    def asked(self, options: Mapping[str, Any]) -> Asked:
        require_known(options)  # what it cannot do is told before anything is started
        ours = OURS.asked(options)
        asked = replace(super().asked(options), draft_model=ours.draft_model, algorithm=ours.algorithm)
        # Its sampler cuts by both at once; a verify, which samples all tokens but the first, by one after the other.
        return replace(asked, probed=True, joint="first" if asked.drafts else "all")

    def notes(self, options: Mapping[str, Any], here: Installed) -> tuple[str, ...]:
        otherwise = self._mapped(options, 0, here)[1]
        return (*(f"engine.{note}" for note in otherwise), *sites_of(here, added_sites(here))[1])

    def interprets(self, here: Installed) -> bool:
        return here.device == "cpu"

    def reserved(self, options: Mapping[str, Any]) -> int:
        return reserved_tokens(options)

    def command(self, options: Mapping[str, Any], seed: int, there: OverThere) -> StartCommand:
        """Raises StoreError where the release is not installed, SpecDebugError."""
        here = self.installed()
        cpu = here.device == "cpu"
        site = make_import_folder(here.folder, files_to_import(stand_ins_of(here), cpu=cpu))
        flags = (*self._mapped(options, seed, here)[0], *self._settings.arguments)
        words = tuple(engine_python(here.python, "-m", "sglang.launch_server", "--port", "{port}", *flags))
        own = ALWAYS_ENV | (ON_CPU_ENV if cpu else {}) | (NATIVE_MOVES if cpu and not there.kernels else {})
        wanted: dict[str, Any] = {
            "probes": [asdict(rule) for rule in there.rules],
            "kernels": [asdict(rule) for rule in there.kernels],
            "sites": sites_of(here, added_sites(here))[0] if there.rules or there.faults else [],
            "tape": there.tape,
            "shows": sorted(there.shows),
        }
        if there.faults:
            wanted |= {"faults": [plain_fault(each) for each in there.faults], "seed": there.seed}
        return StartCommand(words, self.environment(site, here, there, own, **wanted))

    def _mapped(
        self, options: Mapping[str, Any], seed: int, here: Installed
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """As :func:`mapped`, checkpoints by their folders."""
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

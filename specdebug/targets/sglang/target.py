"""The target ``sglang``: a release of SGLang that is installed here, started with a scenario's engine options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import specdebug
from specdebug.base import features
from specdebug.base.abilities import INSIDE, Ability
from specdebug.base.assets import checkpoint_path
from specdebug.base.errors import InvalidOption
from specdebug.base.interpreters import ENGINE_ENV, engine_python
from specdebug.patching import Patch
from specdebug.reference.config import is_read
from specdebug.targets.algorithms import KV_DTYPE, SGLANG, ForeignAlgorithm
from specdebug.targets.base import Asked, Opening, Session, Traits
from specdebug.targets.installed import InstalledTarget, config_of, key_value_heads, make_import_folder, remade
from specdebug.targets.installs.fit import added_sites, sites_of, source_of
from specdebug.targets.installs.release import order, recipes
from specdebug.targets.installs.store import Installed, StoreError
from specdebug.targets.launch.process import StartCommand
from specdebug.targets.options import SGLANGS
from specdebug.targets.ranks.layout import PD, PREFILL, ROLES, RankLayout
from specdebug.targets.relations import NoTwin, Relation, Twin
from specdebug.targets.sglang.drafts import block_draft, sglangs_folder, untied_folder
from specdebug.targets.sglang.faults import SglangFaults
from specdebug.targets.sglang.flags import (
    ALWAYS_ENV,
    IDLING,
    NATIVE_MOVES,
    ON_CPU_ENV,
    STATES,
    disaggregated,
    mapped,
    on_this_machine,
    require_known,
    reserved_tokens,
)
from specdebug.targets.sglang.inside.seats import RETRACT
from specdebug.workers.home import Home
from specdebug.workers.pool import PRELOAD

if TYPE_CHECKING:
    from specdebug.targets.sglang.session import SglangSession

EMPTY = "specdebug_empty"
"""The module that puts empty modules in the place of unused ones."""


def draft_folder(name: str, below: Path, foreign: ForeignAlgorithm | None = None) -> Path:
    """The folder of a draft for SGLang: its own, or for a head with tied embeddings one made ``below``, of links and a
    config that does not tie them: it deletes a head's embedding and then its ``lm_head``, and where these are one the
    second deletion fails. Either way both are the target's from then on. Raises SpecDebugError."""
    draft, taken = ("head", ()) if foreign is None else (foreign.draft, foreign.architectures)
    if draft == "block" and (made := block_draft(name, below)) is not None:
        return made
    path = sglangs_folder(checkpoint_path(name).resolve(), below)
    config = config_of(path)
    if taken and taken.isdisjoint(config.get("architectures") or ()):
        why = f"SGLang drafts so with {' or '.join(sorted(taken))} alone, and this is another model"
        raise InvalidOption(why, ("speculative", "draft_model"))
    if draft != "head":
        return path
    return remade(path, {**config, "tie_word_embeddings": False}, below) if config.get("tie_word_embeddings") else path


SHOWS: frozenset[Ability] = INSIDE | {
    *("steps", "tokens", "plain", "logits", "accept_lengths", "cached_tokens", "cache_flush", "probes", "reverts"),
    *("faults", "logprobs", "set_back"),
}
LOOKING: frozenset[Ability] = INSIDE - {"pools"}
"""Abilities for which the stages of its worker are looked at."""
BY_DENSE: frozenset[Ability] = LOOKING | {"plain", "logits"}
"""Abilities that mean nothing where the dense reference is no model of what is served."""
OF_ONE_STAGE: frozenset[Ability] = LOOKING | {"logits"}
"""Abilities that no stage of a pipeline has for the whole model."""
PLUGINS = "sglang.srt.plugins"
"""SGLang's group of entry points."""
WAITING = "--disable-overlap-schedule"
CONVOLVED = "SGLANG_MAMBA_CONV_DTYPE"
"""The dtype of what a recurrent layer's convolution keeps: without a word bfloat16, whatever the model's."""
SEEDED = "--enable-deterministic-inference"
"""From here on each request draws by its ``sampling_seed``."""
OTHER_COINS = {"plain", "reference", "release", "retracted"}
"""Relations in which a token costs other coins."""
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
_TREES = f"from {_INSIDE}.sgl_kernel import __getattr__, reconstruct_indices_from_tree_mask\n"
_FLASH_MLA = ("sgl_kernel/flash_mla.py", "flash_mla/__init__.py", "flash_mla/flash_mla_interface.py")


def files_to_import(stand_ins: Sequence[str], *, cpu: bool) -> dict[str, str]:
    """What SGLang's processes find beside our package on a CPU, by path: metadata of a server's plugin, ``sgl_kernel``
    and a start-up module that puts empty modules in the place of unused ones."""
    files = {}
    if cpu:
        metadata = f"specdebug_inside-{specdebug.__version__}.dist-info"
        named = f"Metadata-Version: 2.1\nName: specdebug-inside\nVersion: {specdebug.__version__}\n"
        files[f"{metadata}/METADATA"] = named
        files[f"{metadata}/entry_points.txt"] = f"[{PLUGINS}]\nspecdebug = {_INSIDE}.stand_ins:prepare_for_cpu\n"
        refused = f"from {_INSIDE}.sgl_kernel import __getattr__\n"
        files["sgl_kernel/__init__.py"] = f"from {_INSIDE}.sgl_kernel import *\n{refused}"
        files["sgl_kernel/flash_attn.py"] = _FLASH_ATTN
        files["sgl_kernel/speculative.py"] = _TREES
        files |= dict.fromkeys(_FLASH_MLA, refused)  # what decides about graphs imports them to ask for a class
        empty = f"from {_INSIDE}.empty_modules import stand_in_for\n\nstand_in_for({list(stand_ins)!r})\n"
        files["sitecustomize.py"] = files[f"{EMPTY}.py"] = empty  # a server's own start-up, and a worker's
    return files


class SglangTarget(InstalledTarget):
    """A release of SGLang, whose scheduler is built in a worker that runs with its environment's Python."""

    # The coins of a batch are drawn at once, by one generator: the same batches draw the same.
    coins = frozenset({"backend", "eager", "restart"})
    no_twins = MappingProxyType({"runner": "SGLang has one model runner"})

    @property
    def traits(self) -> Traits:
        """Its faults are those that can act in the release that is named, else in the newest that is installed."""
        release = self._settings.named.version
        if release is None:
            with contextlib.suppress(StoreError):  # nothing is installed, which the run will say
                release = self.installed().version
        return Traits(
            "sglang",
            SHOWS,
            records=True,
            slowness=5.0,  # its metadata kernels are interpreted on a CPU
            faults=SglangFaults(release),
            features=features.WITHOUT_LISTS,
        )

    def asked(self, options: Mapping[str, Any]) -> Asked:
        require_known(options)  # what it cannot do is told before anything is started
        device = "cpu"
        with contextlib.suppress(StoreError):  # nothing is installed, which the run will say
            device = self.installed().device
        asked = replace(SGLANGS.asked(options), device=device, guards=False, zero_fill=False, graphs=())
        # Its sampler cuts by both at once; a verify, which samples all tokens but the first, by one after the other.
        joint: Literal["first", "all"] = "first" if asked.drafts else "all"
        quantised = KV_DTYPE in options
        dense = not quantised and is_read(checkpoint_path(asked.model))
        return replace(asked, context_length=self.room(options), joint=joint, dense=dense, quantised=quantised)

    def twin(self, relation: Relation, options: Mapping[str, Any], prompt: int) -> Twin:
        (switch,) = RETRACT.places
        if relation.name == "overlap" and WAITING in self._settings.arguments:
            raise NoTwin("its schedule waits for each batch as it is")
        if relation.name == "reference" and KV_DTYPE in options:
            raise NoTwin("a reference's keys and values are not quantised")
        if relation.name == "overlap":
            found = Twin(WAITING, target=replace(self._settings, arguments=(*self._settings.arguments, WAITING)))
        elif relation.name == "retracted" and not source_of(self.installed()).has(switch):
            raise NoTwin("this release has no switch that sets requests back")
        else:
            found = super().twin(relation, options, prompt)
        _, foreign, _ = SGLANG.named(options)
        if relation.name == "eager" and foreign is not None and foreign.draws:
            found = replace(found, coins=False)
        if SEEDED in self._settings.arguments:
            found = replace(found, coins=relation.name not in OTHER_COINS)
        # A pipeline drafts behind a verify alone, so its first verify has no drafts.
        staged = relation.name == "ranks" and RankLayout.read(options).pp > 1
        return replace(found, unlike=("accept lengths",)) if staged or SGLANG.drafts_by_history(options) else found

    def forks(self, options: Mapping[str, Any]) -> bool:
        _, foreign, _ = SGLANG.named(options)
        return (foreign is None or not foreign.remembers) and RankLayout.read(options).world == 1

    def notes(self, options: Mapping[str, Any], here: Installed) -> tuple[str, ...]:
        otherwise = self._mapped(options, here)[1]
        return (*(f"engine.{note}" for note in otherwise), *sites_of(here, added_sites(here))[1])

    def interprets(self, here: Installed) -> bool:
        return here.device == "cpu"

    def reserved(self, options: Mapping[str, Any]) -> int:
        return reserved_tokens(options)

    def sites(self, here: Installed) -> Sequence[Patch]:
        return sites_of(here, added_sites(here))[0]

    def home(self) -> Home:
        here = self.installed()
        cpu = here.device == "cpu"
        own = ALWAYS_ENV | (ON_CPU_ENV if cpu else {}) | dict(self._settings.variables)
        # A GPU's process cannot be forked once it has one, so there each worker imports the engine itself.
        preload = (*PRELOAD, *((EMPTY, f"{__package__}.inside.imported") if cpu else ()))
        path = tuple(filter(None, (here.tree, str(self._site(here)))))
        return Home(here.python, path, tuple(sorted(own.items())), preload)

    def open(self, options: Mapping[str, Any], seed: int, opening: Opening) -> Session:
        from specdebug.targets.inside.failure import importing
        from specdebug.targets.inside.guard import LOST
        from specdebug.targets.launch.process import free_port
        from specdebug.targets.ranks.session import Ranks
        from specdebug.targets.sglang.build import build, import_engine
        from specdebug.targets.sglang.inside.scheduler import Start
        from specdebug.targets.sglang.inside.transfers import Handovers, stand_in_for_connector
        from specdebug.targets.sglang.session import SglangSession

        here, asked, there = self.installed(), self.asked(options), opening.over_there
        words = (*self._mapped(options, here)[0], *self._settings.arguments)
        hidden = SGLANG.hidden_by(options) | (frozenset() if asked.dense else BY_DENSE)
        hidden |= OF_ONE_STAGE if RankLayout.read(options).pp > 1 else frozenset()
        shows = (SHOWS - INSIDE | frozenset(there.shows)) - hidden
        heads = key_value_heads(checkpoint_path(asked.model))
        cpu, layout, speculative = asked.device == "cpu", RankLayout.read(options), SGLANGS.read(options).speculative
        several, roles = layout.world > 1, (None,) if layout.disaggregation is None else ROLES
        handovers = None if layout.disaggregation is None else Handovers(layout.world)

        def make(rank: int, watch: Callable[[], None] | None, starts: Mapping[str | None, Start]) -> SglangSession:
            if rank and not cpu:
                opening.before()
                import_engine(cpu=False)
            if handovers is not None:
                stand_in_for_connector(handovers, rank, nixl=layout.disaggregation != PD)
            start, port = starts[layout.role(rank)], None if roles == (None,) else starts[PREFILL].bootstrap_port
            built = build(start, layout, rank, there, cpu=cpu, looks=bool(LOOKING & shows), states=STATES[0] in words)
            if built.not_engine_code and not rank:
                opening.say("not_engine_code", parts=list(built.not_engine_code))
            own = (built, asked, shows, speculative, opening)
            return SglangSession(*own, watch=watch, leads=layout.leads(rank), bootstrap_port=port)

        ranks = Ranks(layout, make, opening.limit_s, handovers) if several and not cpu else None
        self.begun(options, opening)
        with importing(self._settings):
            import_engine(cpu=cpu)
        os.environ.setdefault(CONVOLVED, asked.dtype)
        try:
            if several:
                os.environ |= on_this_machine(layout, drafts=speculative is not None)
                ranks = ranks or Ranks(layout, make, opening.limit_s, handovers)
            port = free_port() if layout.disaggregation else None
            starts = {role: Start.of((*words, *disaggregated(layout, role, port)), apart=several) for role in roles}
            session: Session = make(0, None, starts) if ranks is None else ranks.open(starts, heads)
        except Exception:
            for lost in dict.fromkeys(LOST):  # a stand-in that refused judges nothing, whatever SGLang made of that
                opening.say("lost", text=str(lost), stand_in=lost.stand_in)
            raise
        opening.busy.said("")
        return session

    def command(self, options: Mapping[str, Any]) -> StartCommand:
        """How its own server is started with these options, with the stand-ins of a CPU. Raises StoreError where the
        release is not installed, SpecDebugError."""
        here = self.installed()
        cpu = here.device == "cpu"
        flags = (*self._mapped(options, here)[0], *([IDLING] if cpu else ()), *self._settings.arguments)
        words = tuple(engine_python(here.python, "-m", "sglang.launch_server", "--port", "{port}", *flags))
        own = ALWAYS_ENV | (ON_CPU_ENV | NATIVE_MOVES if cpu else {}) | ENGINE_ENV | dict(self._settings.variables)
        path = os.pathsep.join(filter(None, (here.tree, str(self._site(here)))))
        return StartCommand(words, {**os.environ, **own, "PYTHONPATH": path})

    def _site(self, here: Installed) -> Path:
        return make_import_folder(here.folder, files_to_import(stand_ins_of(here), cpu=here.device == "cpu"))

    def _mapped(self, options: Mapping[str, Any], here: Installed) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """As :func:`mapped`, checkpoints by their folders. A run's seed is drawn by when it begins: trials of many
        seeds share what is built."""
        names = {place[-1]: name for place, name in SGLANGS.checkpoints(options)}
        below = here.folder / "checkpoints"
        model = sglangs_folder(checkpoint_path(names["model"]).resolve(), below)
        if RankLayout.read(options).pp > 1:
            model = untied_folder(model, below)
        folders: dict[str, Any] = {"seed": 0, "model": str(model)}
        if "draft_model" in names:
            draft = draft_folder(names["draft_model"], below, SGLANG.named(options)[1])
            folders["speculative"] = {**options["speculative"], "draft_model": str(draft)}
        words, otherwise = mapped({**options, **folders}, cpu=here.device == "cpu", has=source_of(here).has)
        recurrent = {"linear_attention", "mamba"} & set(config_of(model).get("layer_types") or ())
        return (*words, *(STATES if recurrent else ())), otherwise


def stand_ins_of(here: Installed) -> tuple[str, ...]:
    """Modules that empty ones stand in for: those of the recipe; of a release that has none, those of any, for one that
    is there is taken."""
    mine = [each for each in recipes() if each.engine == here.engine and each.device == here.device]
    own = [each for each in mine if order(each.version) == order(here.version)]
    return tuple(sorted({name for each in own or mine for name in each.stand_ins}))

"""The algorithms that ``speculative.algorithm`` may name and what serves each, and the line-up. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specdebug.base.plugins import PluginRegistry, import_named
from specdebug.engine.sites import Drafting, held_at


@dataclass(frozen=True)
class Algorithm:
    """All are ``module:name``, imported when an engine is built; a package brings its own through an entry point of the
    group ``specdebug.algorithms``, named as configurations write it.

    worker, v1: called with a ``protocol.WorkerParts``, each returns a ``protocol.SpeculativeWorker``; v1 is the one
    that ``speculative.worker: v1`` asks for, None where there is none. loader: loads the draft model; called as
    ``model.loader.load_draft`` is. drafter: of a worker that leaves drafting to one; called with a ``DrafterParts``, it
    returns a ``Drafter``. drafting: what drafts. draft_suffix: the default draft's checkpoint is the target's name with
    this behind a hyphen; by default the algorithm's name in small letters.
    """

    worker: str
    loader: str
    drafter: str = "specdebug.engine.textbook.speculative.eagle:EagleDrafter"
    drafting: Drafting = "head"
    draft_suffix: str | None = None
    v1: str | None = None

    @property
    def only_chains(self) -> bool:
        return self.drafting == "layers"

    @property
    def draft_kv(self) -> bool:
        """Its prefill and draft extend write keys and values of its own."""
        return self.drafting != "assistant"


_WORKER = "specdebug.engine.textbook.speculative.worker:EagleWorker"
_EAGLE = Algorithm(_WORKER, "specdebug.engine.model.loader:load_draft", v1="specdebug.engine.workers.v1:EagleWorkerV1")
_MTP = Algorithm(
    _WORKER, "specdebug.engine.model.loader:load_mtp", "specdebug.engine.workers.mtp:MTPDrafter", drafting="layers"
)
_FROZEN_KV = Algorithm(
    _WORKER,
    "specdebug.engine.model.loader:load_assistant",
    "specdebug.engine.workers.frozen_kv:FrozenKVDrafter",
    drafting="assistant",
    draft_suffix="assistant",
)
SHIPPED = {"EAGLE": _EAGLE, "EAGLE3": _EAGLE, "MTP": _MTP, "FROZEN_KV_MTP": _FROZEN_KV}

ALGORITHMS = PluginRegistry("algorithms", "an Algorithm", lambda part: isinstance(part, Algorithm), SHIPPED)


def part_of(name: str, part: Literal["worker", "v1", "drafter", "loader"]) -> Any:
    """The function of that field of an algorithm's. Raises PluginError when its package does not have it."""
    what = {"v1": "worker", "loader": "draft model's loader"}.get(part, part)
    return import_named(getattr(ALGORITHMS[name], part), f"the {what} of algorithm '{name}'")


@dataclass(frozen=True)
class WorkerEntry:
    """One worker, and what has it serve, as configurations name it. ``latent``: the model stores latents in place of
    keys and values by head. ``layers``: the draft has as many, one for each step; None where steps are free.
    """

    name: str
    algorithm: str = "EAGLE"
    worker: Literal["v2", "v1"] = "v2"
    model: str = "tiny"
    latent: bool = False
    layers: int | None = None

    @property
    def drafting(self) -> Drafting:
        return SHIPPED[self.algorithm].drafting

    @property
    def only_chains(self) -> bool:
        return SHIPPED[self.algorithm].only_chains

    @property
    def draft_kv(self) -> bool:
        return SHIPPED[self.algorithm].draft_kv

    def options(self, num_steps: int, eagle_topk: int, num_draft_tokens: int) -> dict[str, Any]:
        """Engine options that have it draft so; a shape that it does not have becomes the one that it has."""
        steps = self.layers or num_steps
        topk = 1 if self.only_chains else eagle_topk
        nodes = steps + 1 if topk == 1 else num_draft_tokens
        shape = {"num_steps": steps, "eagle_topk": topk, "num_draft_tokens": nodes}
        named = {"algorithm": self.algorithm, **({} if self.worker == "v2" else {"worker": self.worker})}
        return {"model": self.model, "speculative": {**named, **shape}}

    def passes(self, site: str) -> bool:
        """Return True if a batch that it serves can pass this site of the engine's."""
        held = held_at(site)
        by_head = not (self.latent and held.only_by_head)
        return by_head and self.drafting in held.drafted_by and not (held.only_v2 and self.worker == "v1")


LINEUP: Mapping[str, WorkerEntry] = {
    entry.name: entry
    for entry in (
        WorkerEntry("EAGLE v2"),
        WorkerEntry("EAGLE v1", worker="v1"),
        WorkerEntry("MTP", algorithm="MTP", layers=3),
        WorkerEntry("FROZEN_KV_MTP", algorithm="FROZEN_KV_MTP"),
        WorkerEntry("MLA", model="tiny-mla", latent=True),
    )
}
"""By the names that tables have for them. With latent attention (MLA) it is the worker v2 that serves."""


def workers_at(site: str) -> tuple[str, ...]:
    """The workers that pass a site of the engine's, by name."""
    return tuple(name for name, entry in LINEUP.items() if entry.passes(site))

"""The algorithms that ``speculative.algorithm`` may name, and what serves each. Imports no torch.

A package of its own brings one through an entry point of the group ``specdebug.algorithms``. The entry point has the
algorithm's name, as configurations write it, and leads to an :class:`Algorithm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdebug.base.plugins import PluginRegistry, import_named
from specdebug.engine.sites import Drafting


@dataclass(frozen=True)
class Algorithm:
    """All are ``module:name``, imported when an engine is built.

    Args:
        worker: called with a ``protocol.WorkerParts``, it returns a ``protocol.SpeculativeWorker``.
        loader: loads the draft model; called as ``model.loader.load_draft`` is.
        drafter: of a worker that leaves drafting to one; called with a ``drafter.DrafterParts``, it returns a
            ``drafter.Drafter``.
        drafting: what drafts; it decides which sites are passed (``engine/sites.py``).
        draft_suffix: the default draft's checkpoint is the target's name with this behind a hyphen; by default the
            algorithm's name in small letters.
        v1: the worker that ``speculative.worker: v1`` asks for, made as ``worker`` is; None where there is none.
    """

    worker: str
    loader: str
    drafter: str = "specdebug.engine.textbook.speculative.eagle:EagleDrafter"
    drafting: Drafting = "head"
    draft_suffix: str | None = None
    v1: str | None = None

    @property
    def only_chains(self) -> bool:
        """Its drafts have one branch."""
        return self.drafting == "layers"

    @property
    def draft_kv(self) -> bool:
        """The draft keeps keys and values of its own, which prefill and draft extend write."""
        return self.drafting != "assistant"


_WORKER = "specdebug.engine.textbook.speculative.worker:EagleWorker"
_EAGLE = Algorithm(_WORKER, "specdebug.engine.model.loader:load_draft", v1="specdebug.engine.workers.v1:EagleWorkerV1")
_MTP = Algorithm(
    _WORKER,
    "specdebug.engine.model.mtp_loader:load_mtp",
    "specdebug.engine.workers.mtp:MTPDrafter",
    drafting="layers",
)
_FROZEN_KV = Algorithm(
    _WORKER,
    "specdebug.engine.model.assistant_loader:load_assistant",
    "specdebug.engine.workers.frozen_kv:FrozenKVDrafter",
    drafting="assistant",
    draft_suffix="assistant",
)
SHIPPED = {"EAGLE": _EAGLE, "EAGLE3": _EAGLE, "MTP": _MTP, "FROZEN_KV_MTP": _FROZEN_KV}

ALGORITHMS = PluginRegistry("algorithms", "an Algorithm", lambda part: isinstance(part, Algorithm), SHIPPED)


def worker_of(name: str, worker: str = "v2") -> Any:
    """The function that makes an algorithm's worker: the one of ``speculative.worker``. Raises PluginError when its
    package does not have it."""
    algorithm = ALGORITHMS[name]
    first = algorithm.v1 if worker == "v1" else None
    return import_named(first or algorithm.worker, f"the worker of algorithm '{name}'")


def drafter_of(name: str) -> Any:
    """The function that makes an algorithm's drafter. Raises PluginError when its package does not have it."""
    return import_named(ALGORITHMS[name].drafter, f"the drafter of algorithm '{name}'")


def loader_of(name: str) -> Any:
    """The function that loads an algorithm's draft model. Raises PluginError when its package does not have it."""
    return import_named(ALGORITHMS[name].loader, f"the draft model's loader of algorithm '{name}'")

"""The algorithms that ``speculative.algorithm`` may name, and what serves each. Imports no torch.

A package of its own brings one through an entry point of the group ``specdebug.algorithms``. The entry point has the
algorithm's name, as configurations write it, and leads to an :class:`Algorithm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdebug.plugins import PluginRegistry, import_named


@dataclass(frozen=True)
class Algorithm:
    """All are ``module:name``, imported when an engine is built.

    Args:
        worker: called with a ``protocol.WorkerParts``, it returns a ``protocol.SpeculativeWorker``.
        loader: loads the draft model; called as ``model.loader.load_draft`` is.
        drafter: of a worker that leaves drafting to one; called with a ``drafter.DrafterParts``, it returns a
            ``drafter.Drafter``.
        only_chains: its drafts have one branch.
    """

    worker: str
    loader: str
    drafter: str = "specdebug.engine.speculative.eagle:EagleDrafter"
    only_chains: bool = False


_EAGLE = Algorithm("specdebug.engine.speculative.worker:EagleWorker", "specdebug.engine.model.loader:load_draft")
_MTP = Algorithm(
    "specdebug.engine.speculative.worker:EagleWorker",
    "specdebug.engine.model.mtp_loader:load_mtp",
    "specdebug.engine.speculative.mtp:MTPDrafter",
    only_chains=True,
)
SHIPPED = {"EAGLE": _EAGLE, "EAGLE3": _EAGLE, "MTP": _MTP}

ALGORITHMS = PluginRegistry("algorithms", "an Algorithm", lambda part: isinstance(part, Algorithm), SHIPPED)


def worker_of(name: str) -> Any:
    """The function that makes an algorithm's worker. Raises PluginError when its package does not have it."""
    return import_named(ALGORITHMS[name].worker, f"the worker of algorithm '{name}'")


def drafter_of(name: str) -> Any:
    """The function that makes an algorithm's drafter. Raises PluginError when its package does not have it."""
    return import_named(ALGORITHMS[name].drafter, f"the drafter of algorithm '{name}'")


def loader_of(name: str) -> Any:
    """The function that loads an algorithm's draft model. Raises PluginError when its package does not have it."""
    return import_named(ALGORITHMS[name].loader, f"the draft model's loader of algorithm '{name}'")

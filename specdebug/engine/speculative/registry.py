"""The algorithms that ``speculative.algorithm`` may name, and what serves each. Imports no torch.

A package registers one of its own before it builds an engine::

    register("MTP", Algorithm(worker="my_package.mtp:MtpWorker", loader="my_package.mtp:load_head"))
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Algorithm:
    """Both are ``module:name``, imported when an engine is built.

    Args:
        worker: called with a ``protocol.WorkerParts``, it returns a ``protocol.SpeculativeWorker``.
        loader: loads the draft model; called as ``model.loader.load_draft`` is.
    """

    worker: str
    loader: str


_EAGLE = Algorithm("specdebug.engine.speculative.worker:EagleWorker", "specdebug.engine.model.loader:load_draft")
_algorithms = {"EAGLE": _EAGLE, "EAGLE3": _EAGLE}


def register(name: str, algorithm: Algorithm) -> None:
    """Let configurations name ``algorithm``. Raises ValueError if the name is taken."""
    if name in _algorithms:
        raise ValueError(f"the algorithm {name!r} is registered already")
    _algorithms[name] = algorithm


def algorithm_names() -> tuple[str, ...]:
    """Every name that a configuration may have."""
    return tuple(_algorithms)


def worker_of(name: str) -> Any:
    """The function that makes an algorithm's worker."""
    return _imported(_algorithms[name].worker)


def loader_of(name: str) -> Any:
    """The function that loads an algorithm's draft model."""
    return _imported(_algorithms[name].loader)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)

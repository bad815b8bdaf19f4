"""Where things are in the engine: the one place of this package that knows names the engine keeps to itself."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

ROWS_PER_REQUEST = (
    ("draft.forward.*", "branches"),
    ("verify.*", "nodes"),
    ("accept.predict", "nodes"),
    ("draft_extend.input_ids", "nodes"),
    ("draft_extend.features", "nodes"),
)
"""Rows that a site's tensor has for each request of the batch; one where no pattern fits."""

CAPTURED_SITES = (
    "draft.forward.*",
    "draft.select.choice",
    "draft.organize.*",
    "draft_extend_graph.replay.*",
)
"""Sites that are reached inside a graph, and so on the host only while it is captured."""


def is_captured(site: str) -> bool:
    """Whether a replayed CUDA graph passes the site without the host knowing."""
    return any(fnmatch.fnmatchcase(site, pattern) for pattern in CAPTURED_SITES)


class EngineView:
    """Handles on an ``Engine``'s parts."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.config = engine.config

    @property
    def running(self) -> list[Any]:
        """Requests that decode, in the order of their batch."""
        return list(self.engine._scheduler.running)

    @property
    def speculating(self) -> list[Any]:
        """Those of them that speculate."""
        return [request for request in self.running if request.speculative]

    @property
    def scheduler(self) -> Any:
        return self.engine._scheduler

    @property
    def worker(self) -> Any:
        """The EAGLE worker, None without speculation."""
        return self.engine._eagle_worker

    @property
    def memory(self) -> Any:
        """Allocator and pools."""
        return self.engine._memory

    @property
    def cache(self) -> Any:
        """The prefix cache."""
        return self.engine._cache

    @property
    def state(self) -> Any:
        """What one decode step leaves for the next, on the device."""
        return self.worker._state

    @property
    def table(self) -> Tensor:
        """req_to_token: int32 [rows + 1, width]."""
        table: Tensor = self.engine._req_to_token.table
        return table

    @property
    def vocab_size(self) -> int:
        """Of the target."""
        size: int = self.engine.model.config.vocab_size
        return size

    @property
    def draft_vocab_size(self) -> int:
        size: int = self.worker._draft_model.vocab_size
        return size

    def pools(self) -> Sequence[tuple[str, Any]]:
        """Every KV pool with its name."""
        named = [("target_kv", self.memory.target), ("draft_kv", self.memory.draft)]
        return [(name, pool) for name, pool in named if pool is not None]

    def buffers(self, runner: str) -> Any:
        """Static buffers of the worker's ``draft``, ``verify`` or ``extend`` runner, None without graph runners."""
        found = getattr(self.worker, f"_{runner}_runner")
        return None if found is None else found.buffers

    def slot(self, request: Any, position: int) -> int:
        """The KV slot of a position."""
        return int(self.table[request.row, position])


def rows_at(site: str, view: EngineView) -> int:
    """How many rows of the site's tensor are one request's."""
    spec = view.config.speculative
    for pattern, unit in ROWS_PER_REQUEST:
        if fnmatch.fnmatchcase(site, pattern) and spec is not None:
            return int(spec.eagle_topk if unit == "branches" else spec.tree_size)
    return 1

"""An engine's own parts, for tools that look inside it or do damage on purpose; to write to them changes the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from specdebug.engine.config import EngineConfig, SpeculativeConfig
from specdebug.engine.errors import EngineError
from specdebug.engine.graph.runner import StaticBuffers
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.textbook.memory.allocator import KVMemory
from specdebug.engine.textbook.memory.prefix_cache import PrefixCache
from specdebug.engine.textbook.memory.req_to_token import ReqToToken
from specdebug.engine.textbook.request import Request
from specdebug.engine.textbook.scheduler import Scheduler
from specdebug.engine.workers.protocol import SpeculativeWorker

if TYPE_CHECKING:
    from specdebug.engine.textbook.engine import Engine
    from specdebug.engine.textbook.speculative.draft import StateTable
    from specdebug.engine.textbook.speculative.worker import StagedWorker

RunnerName = Literal["draft", "verify", "extend"]


@dataclass(frozen=True, eq=False)
class EngineView:
    """Handles on one engine's parts; ``worker`` is None where it does not speculate."""

    engine: Engine
    scheduler: Scheduler
    memory: KVMemory
    cache: PrefixCache
    req_to_token: ReqToToken
    worker: SpeculativeWorker | None

    @property
    def config(self) -> EngineConfig:
        return self.engine.config

    @property
    def spec(self) -> SpeculativeConfig:
        """The options of its drafting. Raises EngineError if it does not speculate."""
        if self.config.speculative is None:
            raise EngineError("this engine does not speculate")
        return self.config.speculative

    @property
    def draft_pool(self) -> KVPool:
        """Draft KV. Raises EngineError if there is none."""
        if self.memory.draft is None:
            raise EngineError("this engine has no draft KV")
        return self.memory.draft

    @property
    def running(self) -> list[Request]:
        """Requests that decode, in the order of their batch."""
        return list(self.scheduler.running)

    @property
    def eagle(self) -> StagedWorker[Any]:
        """The worker of our own stages. Raises EngineError if there is none."""
        from specdebug.engine.textbook.speculative.worker import StagedWorker

        if not isinstance(self.worker, StagedWorker):
            raise EngineError("this engine has no EAGLE worker; set speculative.algorithm to EAGLE or EAGLE3")
        return self.worker

    @property
    def state(self) -> StateTable[Any]:
        return self.eagle.state

    @property
    def table(self) -> Tensor:
        """req_to_token: int32 [rows + 1, width]."""
        return self.req_to_token.table

    @property
    def vocab_size(self) -> int:
        return self.engine.model.config.vocab_size

    @property
    def draft_vocab_size(self) -> int:
        vocab_size: int = self.eagle.drafter.model.vocab_size
        return vocab_size

    def pools(self) -> list[tuple[str, KVPool]]:
        """Every KV pool with its name."""
        named = [("target_kv", self.memory.target), ("draft_kv", self.memory.draft)]
        return [(name, pool) for name, pool in named if pool is not None]

    def buffers(self, runner: RunnerName) -> StaticBuffers:
        """Static buffers of a graph runner of the worker's. Raises EngineError without graph runners."""
        found = getattr(self.eagle.runners, runner)
        if found is None:
            raise EngineError(f"this engine has no graph runner of its {runner}; is cuda_graph.enabled set?")
        buffers: StaticBuffers = found.buffers
        return buffers

    def slot(self, request: Request, position: int) -> int:
        """The KV slot of a position."""
        return int(self.table[request.row, position])

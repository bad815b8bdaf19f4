"""The contract between an engine and its speculative worker. The EAGLE worker is one; others may be registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.config import SpeculativeConfig
from specdebug.engine.errors import EngineError
from specdebug.engine.graph.forward import EngineParts
from specdebug.engine.memory.arena import GuardViolation
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import DraftSizes
from specdebug.engine.model.llama import TargetModel
from specdebug.engine.textbook.batch import PrefillBatch
from specdebug.engine.textbook.memory.kv_memory import KVMemory
from specdebug.engine.textbook.memory.req_to_token import ReqToToken
from specdebug.engine.textbook.request import Request


class SpeculativeWorker(Protocol):
    """Serves an engine's requests that speculate. It owns the draft pool's content."""

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        """The target has computed these prompt chunks. next_ids: int64 [B], its sample after each. features: [Σext, F],
        by token. Draft KV that a request's cached prefix lacks, ``unwritten_draft_slots``, is written now or counts as
        missing; once it is written, that is None."""

    def decode(self, requests: Sequence[Request]) -> list[list[int]]:
        """One iteration; the tokens each request gained, at least one."""

    def check_guards(self) -> list[GuardViolation]:
        """Overruns of static buffers since the last call."""

    def damage_seen(self) -> list[GuardViolation]:
        """Overruns that reached the host before the device was lost."""


@dataclass(frozen=True)
class Pools:
    """The two pools that share slot ids, and the table that maps positions to slots. ``draft_kv``: None where the draft
    keeps no KV."""

    target: KVPool
    draft_kv: KVPool | None
    req_to_token: ReqToToken

    @property
    def draft(self) -> KVPool:
        """Draft KV, for those whose draft keeps some. Raises EngineError if there is none."""
        if self.draft_kv is None:
            raise EngineError("this engine's draft model keeps no KV")
        return self.draft_kv


@dataclass(frozen=True)
class DraftAndTargetAttention:
    """The backends that attend for either model: their heads may differ."""

    draft: AttentionBackend
    target: AttentionBackend


@dataclass(frozen=True)
class WorkerParts(EngineParts):
    """An engine gives its speculative worker these to work with. Models and pools are shared with the engine; so is
    ``memory``, for a worker that takes slots itself."""

    spec: SpeculativeConfig
    target: TargetModel
    draft: DraftSizes
    pools: Pools
    memory: KVMemory
    attention: DraftAndTargetAttention

    @property
    def vocab_size(self) -> int:
        """V, of the target."""
        return self.target.config.vocab_size

"""The contracts between an engine and its speculative worker, and between a worker and one way of drafting, to which it
leaves which tokens are proposed (stage 1) and what is computed of the accepted ones (stage 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.config import SpeculativeConfig
from specdebug.engine.errors import EngineError
from specdebug.engine.graph.runner import EngineParts, GraphRunner
from specdebug.engine.kernels.cache_locs import DraftCacheLocs
from specdebug.engine.memory.arena import GuardViolation
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import DraftSizes
from specdebug.engine.model.models import TargetModel
from specdebug.engine.textbook.attention.planner import ExtendLayout, SequenceLayout, Workspace
from specdebug.engine.textbook.memory.allocator import KVMemory
from specdebug.engine.textbook.memory.req_to_token import ReqToToken
from specdebug.engine.textbook.request import PrefillBatch, Request
from specdebug.engine.textbook.speculative.accept import Compacted
from specdebug.engine.textbook.speculative.draft import StateTable, StepState
from specdebug.engine.textbook.speculative.tree import DraftCandidates


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
class WorkerParts(EngineParts):
    """An engine gives its speculative worker these to work with. Models and ``memory``, whose two pools share slot ids,
    are shared with the engine. Target and draft have a backend each, because their heads may differ."""

    spec: SpeculativeConfig
    target: TargetModel
    draft: DraftSizes
    memory: KVMemory
    req_to_token: ReqToToken
    target_attention: AttentionBackend
    draft_attention: AttentionBackend

    @property
    def vocab_size(self) -> int:
        """V, of the target."""
        return self.target.config.vocab_size

    @property
    def draft_pool(self) -> KVPool:
        """Draft KV, for those whose draft keeps some. Raises EngineError if there is none."""
        if self.memory.draft is None:
            raise EngineError("this engine's draft model keeps no KV")
        return self.memory.draft


State = TypeVar("State", bound=StepState, contravariant=True)
Runner = GraphRunner[Any, Any]


@dataclass(frozen=True)
class DrafterParts:
    """A worker gives its drafter these. ``ragged_extend``: stage 6 will be over accepted tokens only, for which there
    is no graph runner."""

    worker: WorkerParts
    workspace: Workspace
    ragged_extend: bool = False


class Drafter(Protocol[State]):
    """One way of drafting; made with ``DrafterParts``. It owns the draft pool's content and its own graph runners."""

    @property
    def model(self) -> DraftSizes:
        """The draft model."""

    @property
    def state(self) -> StateTable[Any]:
        """The state that a step leaves for the next, by row."""

    @property
    def draft_runner(self) -> Runner | None:
        """The graph runner of stage 1, None where it computes nothing or there are no runners."""

    @property
    def extend_runner(self) -> Runner | None:
        """That of stage 6."""

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        """Write what the draft needs of these prompt chunks, and after a final chunk keep the start of the first draft.

        next_ids: int64 [B], the target's sample after each chunk. features: [Σext, F]. The worker stores the lengths.
        """

    def draft(self, rows: Tensor, state: State, slots: Tensor, lens_cpu: tuple[int, ...]) -> DraftCandidates:
        """Stage 1. rows: int64 [B]. slots: int64 [B·T], those that the verify will write. Lengths are at most
        ``lens_cpu``."""

    def extend(self, batch: SequenceLayout, compacted: Compacted, slots: Tensor) -> None:
        """Stage 6: take in the accepted tokens and keep the start of the next draft. ``batch`` has the lengths before
        the step. slots: int64 [B·T], those that the verify wrote."""


@dataclass(frozen=True)
class AcceptedRows:
    """The rows of an extend over accepted tokens only, request by request: ΣA of them. ``layout``: the lengths before
    the step, and how many each request has. rows: int64 [ΣA], their places among the B·T of a ``Compacted``.
    positions, slots: int64 [ΣA]. last: int64 [B], each request's last row."""

    layout: ExtendLayout
    rows: Tensor
    positions: Tensor
    slots: Tensor
    last: Tensor


class SlotDrafter(Drafter[State], Protocol[State]):
    """A way of drafting that serves the worker v1, too: into slots that the worker names, and over accepted tokens
    only."""

    def draft_into(
        self, rows: Tensor, state: State, locs: DraftCacheLocs, lens_cpu: tuple[int, ...]
    ) -> DraftCandidates:
        """Stage 1, into these slots. rows: int64 [B]. Lengths are ``lens_cpu``."""

    def extend_accepted(self, compacted: Compacted, accepted: AcceptedRows) -> None:
        """Stage 6 over these rows, as :meth:`extend`."""

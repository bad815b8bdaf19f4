"""What is particular to one way of drafting: its model, the state that a step leaves for the next, its forwards.

A worker knows the order of the stages and shares verify, accept and commit among all ways of drafting; which tokens are
proposed (stage 1), and what is computed of the accepted ones (stage 6), it leaves to a drafter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from specdebug.engine.graph.runner import GraphRunner
from specdebug.engine.kernels.cache_locs import DraftCacheLocs
from specdebug.engine.model.interface import DraftSizes
from specdebug.engine.textbook.attention.planner import ExtendLayout, SequenceLayout
from specdebug.engine.textbook.attention.workspace import Workspace
from specdebug.engine.textbook.batch import PrefillBatch
from specdebug.engine.textbook.speculative.commit import Compacted
from specdebug.engine.textbook.speculative.draft import StepState
from specdebug.engine.textbook.speculative.tree import DraftCandidates
from specdebug.engine.workers.protocol import WorkerParts


class StateTable(Protocol):
    """``StepState`` for every row of ``req_to_token``, and what one way of drafting adds to it."""

    seq_lens: Tensor
    bonus: Tensor

    def gather(self, rows: Tensor) -> StepState:
        """Return the start of the next draft of the given rows (int64 [B])."""

    def read(self, rows: Tensor) -> StepState:
        """Return copies of the drafting state of the given rows (int64 [B]), for who looks from outside."""

    def store_lengths(self, rows: Tensor, seq_lens: Tensor, bonus: Tensor) -> None:
        """Publish new committed lengths and bonus tokens, before the draft extend runs."""


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
    def state(self) -> StateTable:
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

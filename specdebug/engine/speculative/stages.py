"""What every worker of ours has of a speculative step: its stages, their runners, and the state between steps.

Workers differ in how they take memory and how far the host may lag; each has a file of its own with its ``decode``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from specdebug.engine.attention.workspace import EagerWorkspace
from specdebug.engine.batch import PrefillBatch
from specdebug.engine.device import Readback, upload
from specdebug.engine.graph.runner import GraphRunner, capture, launcher
from specdebug.engine.graph.tables import verify_table
from specdebug.engine.memory.arena import GuardViolation
from specdebug.engine.memory.fill import Scratch
from specdebug.engine.request import Request
from specdebug.engine.speculative.accept import Acceptance
from specdebug.engine.speculative.commit import Compacted
from specdebug.engine.speculative.drafter import Drafter, DrafterParts
from specdebug.engine.speculative.protocol import WorkerParts
from specdebug.engine.speculative.registry import drafter_of
from specdebug.engine.speculative.state import StateTable
from specdebug.engine.speculative.tree import TreeBuilder, VerifyTree
from specdebug.engine.speculative.verify import VerifyForward, VerifyStage
from specdebug.events import Decided


@dataclass(frozen=True)
class Runners:
    """The graph runners of a step's forwards; None for a stage that computes nothing, and where the configuration has
    no graph runners, so that every batch runs eagerly."""

    draft: GraphRunner[Any, Any] | None
    verify: GraphRunner[Any, Any] | None
    extend: GraphRunner[Any, Any] | None

    @property
    def all(self) -> list[GraphRunner[Any, Any]]:
        """Those that there are."""
        return [runner for runner in (self.verify, self.draft, self.extend) if runner is not None]


AnyDrafter = TypeVar("AnyDrafter", bound=Drafter[Any])


class StagedWorker(Generic[AnyDrafter]):
    """A worker's parts, whatever drafts.

    ``drafts_ahead``: the next step may be begun before this one's tokens are read. ``ragged_extend``: the extend takes
    accepted rows only, which no graph of a fixed size can hold.
    """

    ragged_extend: ClassVar[bool] = False

    def __init__(self, parts: WorkerParts) -> None:
        spec, draft, device = parts.spec, parts.draft, parts.device
        self.drafts_ahead = False
        self._parts = parts
        self._scratch = Scratch(parts.fill, device)
        workspace = EagerWorkspace(self._scratch)
        made_with = DrafterParts(parts, workspace, ragged_extend=self.ragged_extend)
        self.drafter: AnyDrafter = drafter_of(spec.algorithm)(made_with)
        self._tree_builder = TreeBuilder(topk=spec.eagle_topk, tree_size=spec.tree_size, device=device)
        verify = VerifyForward(parts.target, parts.pools.target, draft.aux_layers, draft.target_feature_size)
        table = verify_table(parts, verify, spec.tree_size)
        verifies = launcher(parts, verify, parts.attention.target, workspace, table)
        self.runners = Runners(self.drafter.draft_runner, verifies.runner, self.drafter.extend_runner)
        capture(self.runners.all, device)
        self._verify = VerifyStage(parts, verifies)
        self._last_rows: tuple[tuple[int, ...], Tensor] | None = None

    @property
    def state(self) -> StateTable:
        """The state that one step leaves for the next, on the device."""
        return self.drafter.state

    def _rows_of(self, requests: Sequence[Request]) -> Tensor:
        """int64 [B]; the last batch's tensor when it had the same rows, as decode batches mostly do."""
        rows = tuple(request.row for request in requests)
        if self._last_rows is None or self._last_rows[0] != rows:
            self._last_rows = rows, upload(rows, self._parts.device)
        return self._last_rows[1]

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        """The target has computed these prompt chunks. next_ids: int64 [B], its sample after each. features:
        [Σext, F]."""
        self.drafter.prefill(batch, next_ids, features)
        self.state.store_lengths(batch.req_pool_indices, batch.prefix_lens + batch.extend_lens, next_ids)

    def _tell_observers(
        self, requests: Sequence[Request], tree: VerifyTree, logits: Tensor, acceptance: Acceptance
    ) -> None:
        """Tell what a verify has decided. logits: [B·T, V]."""
        spec = self._parts.spec
        self._parts.observers.tell(
            Decided,
            requests=requests,
            logits=logits,
            topk=spec.eagle_topk,
            num_steps=spec.num_steps,
            threshold_single=spec.threshold_single,
            threshold_acc=spec.threshold_acc,
            **vars(tree),
            **vars(acceptance),
        )

    def check_guards(self) -> list[GuardViolation]:
        """Overruns of any runner's static buffers since the last call."""
        return [violation for runner in self.runners.all for violation in runner.check_guards()]

    def damage_seen(self) -> list[GuardViolation]:
        """Overruns that reached the host before the device was lost."""
        return [violation for runner in self.runners.all for violation in runner.damage_seen()]


def read_back(compacted: Compacted, *more: Tensor) -> Readback:
    """Queue a copy to the host of what each request accepted: a row for each of A, its T predictions, accepted ones
    first, and the columns of ``more`` ([B, n] each)."""
    lengths = compacted.accept_lengths.unsqueeze(1)
    return Readback(torch.cat([lengths, compacted.predict.view(lengths.shape[0], -1), *more], dim=1))


def bonus_of(compacted: Compacted, accept_lengths: Tensor) -> Tensor:
    """The last of each request's first accepted tokens, so many as ``accept_lengths`` (int64 [B]) says: int64 [B]."""
    predict = compacted.predict.view(accept_lengths.numel(), -1)
    return predict.gather(1, accept_lengths.unsqueeze(1) - 1).squeeze(1)

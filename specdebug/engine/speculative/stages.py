"""What every worker of ours has of a speculative step: its stages, their runners, and the state between steps.

Workers differ in how they take memory and how far the host may lag; each has a file of its own with its ``decode``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from specdebug.engine.attention.workspace import EagerWorkspace
from specdebug.engine.batch import PrefillBatch
from specdebug.engine.device import Readback, upload
from specdebug.engine.graph.verify_runner import VerifyGraphRunner
from specdebug.engine.memory.arena import GuardViolation
from specdebug.engine.memory.fill import Scratch
from specdebug.engine.request import Request
from specdebug.engine.speculative.commit import Compacted
from specdebug.engine.speculative.drafter import Drafter, DrafterParts
from specdebug.engine.speculative.protocol import WorkerParts
from specdebug.engine.speculative.registry import drafter_of
from specdebug.engine.speculative.runners import Runners, capture, runner_parts
from specdebug.engine.speculative.state import StateTable
from specdebug.engine.speculative.tree import TreeBuilder
from specdebug.engine.speculative.verify import VerifyForward, VerifyStage

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
        shared = runner_parts(parts)
        made_with = DrafterParts(parts, workspace, shared, ragged_extend=self.ragged_extend)
        self.drafter: AnyDrafter = drafter_of(spec.algorithm)(made_with)
        self._tree_builder = TreeBuilder(topk=spec.eagle_topk, tree_size=spec.tree_size, device=device)
        verify = VerifyForward(parts.target, parts.pools.target, draft.aux_layers, draft.target_feature_size)
        on_verify = None
        if shared is not None:
            on_verify = VerifyGraphRunner(shared, verify, parts.attention.target, tree_size=spec.tree_size)
        self.runners = runners = Runners(self.drafter.draft_runner, on_verify, self.drafter.extend_runner)
        in_order = (runners.verify, runners.draft, runners.extend)
        capture([runner for runner in in_order if runner is not None], device)
        self._verify = VerifyStage(parts, verify, on_verify, workspace)
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

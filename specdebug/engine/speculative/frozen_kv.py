"""Drafting with an assistant that reads the target's KV and keeps none: frozen-KV MTP.

Stage 1 is S passes: a seed pass on the bonus token and the target's hidden state at L - 1, whose K best tokens are the
roots, then S - 1 passes, each on the tokens drafted last and the hidden states of the pass before. All of them ask from
position L - 1 and attend the target's KV of [0, L): what was drafted has no KV, and positions never advance. With K
branches a request has K rows, in the seed pass all alike. Stage 6 computes nothing: the target's hidden state at the
last accepted position is kept.

There is no draft KV that a prefix hit could lack, and slots depend on no token but their own.

Source: SGLang ``frozen_kv_mtp_worker.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.attention.planner import SequenceLayout
from specdebug.engine.attention.workspace import Workspace
from specdebug.engine.batch import PrefillBatch
from specdebug.engine.graph.frozen_kv_runner import FrozenKVGraphRunner
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.speculative.commit import Compacted, last_accepted_rows
from specdebug.engine.speculative.drafter import DrafterParts
from specdebug.engine.speculative.frozen_kv_loop import FrozenKVInputs, FrozenKVLoop, last_positions
from specdebug.engine.speculative.protocol import WorkerParts
from specdebug.engine.speculative.selection import DraftCandidates
from specdebug.engine.speculative.state import LengthTable, StepState


@dataclass(frozen=True)
class FrozenKVState(StepState):
    """hidden_states: [B, H], the target's at position L - 1. There is no top-k yet: the seed pass finds it."""

    hidden_states: Tensor
    topk_p: None = None
    topk_index: None = None


class FrozenKVStateTable(LengthTable):
    """``FrozenKVState`` for every row of ``req_to_token``."""

    def __init__(self, rows: int, *, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(rows, device)
        self._hidden = torch.zeros((rows + 1, hidden_size), dtype=dtype, device=device)

    def gather(self, rows: Tensor) -> FrozenKVState:
        """Return the start of the next draft of the given rows (int64 [B])."""
        return self.read(rows)

    def read(self, rows: Tensor) -> FrozenKVState:
        """Copies of the given rows (int64 [B])."""
        seq_lens, bonus, hidden = (each.index_select(0, rows) for each in (self.seq_lens, self.bonus, self._hidden))
        return FrozenKVState(seq_lens, bonus, hidden)

    def store_hidden(self, rows: Tensor, hidden_states: Tensor) -> None:
        """Keep the target's hidden states [B, H] of the given rows' last positions."""
        self._hidden.index_copy_(0, rows, hidden_states)


@dataclass(frozen=True, eq=False)
class FrozenKVStage:
    """Drafts for a batch from the state of the last step. It writes nowhere but into its own buffers."""

    parts: WorkerParts
    loop: FrozenKVLoop
    runner: FrozenKVGraphRunner | None
    workspace: Workspace

    def run(self, rows: Tensor, state: FrozenKVState, lens_cpu: tuple[int, ...]) -> DraftCandidates:
        """rows: int64 [B]. Lengths are at most ``lens_cpu``."""
        parts = self.parts
        with grouped():
            maybe_detect_oob(state.bonus, 0, parts.vocab_size, "draft.bonus")
            maybe_detect_nan(state.hidden_states, "draft.hidden_states")
        positions = last_positions(state.seq_lens, self.loop.topk)
        inputs = FrozenKVInputs(state.bonus, state.hidden_states, rows, state.seq_lens, positions)
        if self.runner is not None and self.runner.can_run(rows.numel()):
            return self.runner.replay(inputs, lens_cpu)
        parts.observers.launched("draft", rows.numel(), None)
        metadata = self.loop.plan(parts.planner, inputs, lens_cpu, self.workspace)
        return self.loop.run(inputs, parts.attention.draft.bind(metadata, parts.pools.target, None))


class FrozenKVDrafter:
    """The ``Drafter`` of one assistant: it owns the target's hidden states that drafts start from, and one runner."""

    extend_runner = None

    def __init__(self, parts: DrafterParts) -> None:
        worker, runners, spec = parts.worker, parts.runners, parts.worker.spec
        self.model = assistant = cast(DraftModel, worker.draft)  # the loader of this algorithm made it
        self._tree_size = spec.tree_size
        self.state = FrozenKVStateTable(
            worker.config.max_running_requests,
            hidden_size=assistant.hidden_size,
            dtype=worker.dtype,
            device=worker.device,
        )
        self.loop = FrozenKVLoop(
            assistant,
            worker.pools.target,
            topk=spec.eagle_topk,
            num_steps=spec.num_steps,
            tree_size=spec.tree_size,
            target_vocab_size=worker.vocab_size,
            observers=worker.observers,
        )
        self.draft_runner: FrozenKVGraphRunner | None = None
        if runners is not None:
            self.draft_runner = FrozenKVGraphRunner(runners, self.loop, worker.attention.draft)
        self._draft = FrozenKVStage(worker, self.loop, self.draft_runner, parts.workspace)

    def draft(self, rows: Tensor, state: FrozenKVState, slots: Tensor, lens_cpu: tuple[int, ...]) -> DraftCandidates:
        return self._draft.run(rows, state, lens_cpu)

    def extend(self, batch: SequenceLayout, compacted: Compacted, slots: Tensor) -> None:
        maybe_detect_nan(compacted.features, "draft_extend.features")
        self._keep(
            batch.req_pool_indices, compacted.features, last_accepted_rows(compacted.accept_lengths, self._tree_size)
        )

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        self._keep(batch.req_pool_indices, features, batch.last_rows())

    def _keep(self, rows: Tensor, features: Tensor, last: Tensor) -> None:
        """Keep the features [n, F] at rows ``last`` (int64 [B]), one of each request."""
        self.state.store_hidden(rows, self.model.project(features.index_select(0, last)))

"""Drafting with an EAGLE or EAGLE-3 head: a loop of draft forwards, and one over the accepted tokens."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.graph.runner import launcher
from specdebug.engine.graph.tables import draft_table, extend_table
from specdebug.engine.kernels.cache_locs import DraftCacheLocs
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.textbook.attention.planner import ExtendLayout, SequenceLayout
from specdebug.engine.textbook.batch import PrefillBatch
from specdebug.engine.textbook.request import Request
from specdebug.engine.textbook.speculative.commit import Compacted
from specdebug.engine.textbook.speculative.draft import DraftLoop, DraftStage, DraftState, DraftStateTable
from specdebug.engine.textbook.speculative.extend import ExtendForward, ExtendOutputs, ExtendStage
from specdebug.engine.textbook.speculative.tree import DraftCandidates
from specdebug.engine.workers.drafter import AcceptedRows, DrafterParts


class EagleDrafter:
    """The ``Drafter`` of one head: it owns the draft's state, its two runners and the draft pool's content."""

    def __init__(self, parts: DrafterParts) -> None:
        worker, workspace = parts.worker, parts.workspace
        spec, pool, attention = worker.spec, worker.pools.draft, worker.attention.draft
        self.model = draft = cast(DraftModel, worker.draft)  # an EAGLE loader made it
        self._parts = worker
        self._workspace = workspace
        self.state = DraftStateTable(
            worker.config.max_running_requests,
            topk=spec.eagle_topk,
            hidden_size=draft.hidden_size,
            dtype=worker.dtype,
            device=worker.device,
        )
        self.loop = loop = DraftLoop(
            draft,
            pool,
            topk=spec.eagle_topk,
            num_steps=spec.num_steps,
            tree_size=spec.tree_size,
            target_vocab_size=worker.vocab_size,
            observers=worker.observers,
        )
        extend = ExtendForward(draft, pool, topk=spec.eagle_topk, tree_size=spec.tree_size)
        table = None if parts.ragged_extend else extend_table(worker, extend, worker.vocab_size)
        drafts = launcher(worker, loop, attention, workspace, draft_table(worker, loop))
        extends = launcher(worker, extend, attention, workspace, table)
        self.draft_runner, self.extend_runner = drafts.runner, extends.runner
        self._draft = DraftStage(worker, drafts)
        self._extend = ExtendStage(worker, extend, extends, self.state)

    def draft(self, rows: Tensor, state: DraftState, slots: Tensor, lens_cpu: tuple[int, ...]) -> DraftCandidates:
        return self._draft.run(rows, state, slots, lens_cpu)

    def draft_into(
        self, rows: Tensor, state: DraftState, locs: DraftCacheLocs, lens_cpu: tuple[int, ...]
    ) -> DraftCandidates:
        return self._draft.run_on(rows, state, locs, lens_cpu)

    def extend(self, batch: SequenceLayout, compacted: Compacted, slots: Tensor) -> None:
        self._extend.run(batch, compacted, slots)

    def extend_accepted(self, compacted: Compacted, accepted: AcceptedRows) -> None:
        self._extend.probe_inputs(compacted)
        input_ids, features = (each.index_select(0, accepted.rows) for each in (compacted.predict, compacted.features))
        hidden = self._forward(accepted.layout, input_ids, accepted.positions, features, accepted.slots)
        self._parts.pools.draft.probe_written(accepted.slots)
        self._extend.keep(accepted.layout.req_pool_indices, self._read_out(hidden, accepted.last))

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        for request in batch.requests:
            prepare_cached_prefix(request, self._parts.pools.draft)
        tail = self._tail_tokens(batch, next_ids)
        input_ids = torch.roll(batch.input_ids, -1)
        input_ids[batch.last_rows()] = tail
        maybe_detect_oob(input_ids, 0, self._parts.vocab_size, "draft_prefill.input_ids")
        hidden = self._forward(batch.layout(), input_ids, batch.positions, features, batch.out_cache_loc)
        with grouped():
            self._parts.pools.draft.probe_written(batch.out_cache_loc)
            maybe_detect_nan(hidden, "draft_prefill.hidden_states")
        self._extend.keep(batch.req_pool_indices, self._read_out(hidden, batch.last_rows()))

    def _forward(
        self, layout: ExtendLayout, input_ids: Tensor, positions: Tensor, features: Tensor, slots: Tensor
    ) -> Tensor:
        """One draft forward over chunks of any length, one after another: hidden [Σext, Hd]."""
        parts = self._parts
        metadata = parts.planner.extend(layout, self._workspace)
        attention = parts.attention.draft.bind(metadata, parts.pools.draft, slots)
        return self.model.forward(input_ids, positions, self.model.project(features), attention)

    def _read_out(self, hidden: Tensor, last: Tensor) -> ExtendOutputs:
        """The start of the next draft, read at rows ``last`` (int64 [B]), one of each request."""
        return self._extend.forward.read_out(hidden[last])

    def _tail_tokens(self, batch: PrefillBatch, next_ids: Tensor) -> Tensor:
        """The token after each chunk: the sampled one; on a non-final chunk the prompt's own next token."""
        return torch.where(batch.final, next_ids, batch.next_prompt_ids)


def prepare_cached_prefix(request: Request, pool: KVPool) -> None:
    """Zero the draft KV that a request's cached prefix lacks: unwritten memory may hold anything."""
    slots = request.unwritten_draft_slots
    if slots is not None and slots.numel():
        pool.zero(slots)
    request.unwritten_draft_slots = None

"""Stages 1 and 6 with an EAGLE or EAGLE-3 head: a loop of draft forwards, and one over the accepted tokens."""

from typing import cast

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob, maybe_detect_page_aligned
from specdebug.engine.graph.runner import launcher
from specdebug.engine.graph.tables import draft_table, extend_table
from specdebug.engine.kernels.cache_locs import DraftCacheLocs, assign_draft_cache_locs
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import DraftModel
from specdebug.engine.textbook.attention.planner import ExtendLayout, SequenceLayout
from specdebug.engine.textbook.request import PrefillBatch, Request
from specdebug.engine.textbook.speculative.accept import Compacted
from specdebug.engine.textbook.speculative.draft import (
    DraftInputs,
    DraftLoop,
    DraftState,
    ExtendForward,
    ExtendInputs,
    ExtendOutputs,
    StateTable,
)
from specdebug.engine.textbook.speculative.tree import DraftCandidates
from specdebug.engine.workers.protocol import AcceptedRows, DrafterParts


class EagleDrafter:
    """The ``Drafter`` of one head: it owns the draft's state, its two runners and the draft pool's content."""

    def __init__(self, parts: DrafterParts) -> None:
        worker, workspace = parts.worker, parts.workspace
        spec, pool, attention = worker.spec, worker.draft_pool, worker.draft_attention
        self.model = draft = cast(DraftModel, worker.draft)  # an EAGLE loader made it
        self._parts, self._pool, self._workspace = worker, pool, workspace
        topk, rows = (spec.eagle_topk,), worker.config.max_running_requests
        columns = (topk, torch.float32), (topk, torch.int64), ((draft.hidden_size,), worker.dtype)
        self.state = StateTable(DraftState, rows, worker.device, *columns)
        self.loop = DraftLoop(draft, pool, spec, target_vocab_size=worker.vocab_size, observers=worker.observers)
        self._forward = ExtendForward(draft, pool, topk=spec.eagle_topk, tree_size=spec.tree_size)
        table = None if parts.ragged_extend else extend_table(worker, self._forward, worker.vocab_size)
        self._drafts = launcher(worker, self.loop, attention, workspace, draft_table(worker, self.loop))
        self._extends = launcher(worker, self._forward, attention, workspace, table)
        self.draft_runner, self.extend_runner = self._drafts.runner, self._extends.runner

    def draft(self, rows: Tensor, state: DraftState, slots: Tensor, lens_cpu: tuple[int, ...]) -> DraftCandidates:
        """Stage 1, into slots that requests hold in reserve: a chain continues the row, so it takes the first ones of
        the verify."""
        spec, parts = self._parts.spec, self._parts
        if spec.eagle_topk == 1:
            locs = DraftCacheLocs(slots.view(rows.numel(), -1)[:, : spec.num_steps], None, None)
        else:
            locs = assign_draft_cache_locs(
                parts.req_to_token.table,
                rows,
                state.seq_lens,
                topk=spec.eagle_topk,
                num_steps=spec.num_steps,
                page_size=parts.config.page_size,
            )
        return self.draft_into(rows, state, locs, lens_cpu)

    def draft_into(
        self, rows: Tensor, state: DraftState, locs: DraftCacheLocs, lens_cpu: tuple[int, ...]
    ) -> DraftCandidates:
        topk = self._parts.spec.eagle_topk
        with grouped():
            maybe_detect_oob(state.bonus, 0, self._parts.vocab_size, "draft.bonus")
            maybe_detect_oob(locs.out_cache_loc, 0, self._pool.size, "draft.out_cache_loc")
        self._copy_prefix_tails(rows, state.seq_lens, locs)
        positions = state.seq_lens.repeat_interleave(topk) if topk > 1 else state.seq_lens
        inputs = DraftInputs(
            state.topk_p, state.topk_index, state.hidden_states, rows, state.seq_lens, positions, locs.out_cache_loc
        )
        return self._drafts.run(inputs, lens_cpu)

    def _copy_prefix_tails(self, rows: Tensor, seq_lens: Tensor, locs: DraftCacheLocs) -> None:
        """Give every branch a copy of the page that the prefix ends in, where branches own whole pages."""
        if locs.dup_src is None or locs.dup_tgt is None:
            return
        page_size = self._parts.config.page_size
        tail_start = self._parts.req_to_token.table[rows, seq_lens - seq_lens % page_size]
        maybe_detect_page_aligned(tail_start, page_size, "draft.prefix_tail")
        self._pool.move_kv_cache(locs.dup_tgt, locs.dup_src)

    def extend(self, batch: SequenceLayout, compacted: Compacted, slots: Tensor) -> None:
        nodes = torch.arange(self._parts.spec.tree_size, device=self._parts.device)
        self._probe_inputs(compacted)
        inputs = ExtendInputs(
            input_ids=compacted.predict,
            positions=(batch.seq_lens.unsqueeze(1) + nodes).view(-1),
            out_cache_loc=slots,
            features=compacted.features,
            accept_lengths=compacted.accept_lengths,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
        )
        start = self._extends.run(inputs, batch.seq_lens_cpu)
        with grouped():
            self._pool.probe_written(slots)
            self.keep(batch.req_pool_indices, start)

    def extend_accepted(self, compacted: Compacted, accepted: AcceptedRows) -> None:
        self._probe_inputs(compacted)
        input_ids, features = (each.index_select(0, accepted.rows) for each in (compacted.predict, compacted.features))
        hidden = self._run(accepted.layout, input_ids, accepted.positions, features, accepted.slots)
        self._pool.probe_written(accepted.slots)
        self.keep(accepted.layout.req_pool_indices, self._forward.read_out(hidden[accepted.last]))

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        for request in batch.requests:
            prepare_cached_prefix(request, self._pool)
        tail, last = self._tail_tokens(batch, next_ids), batch.last_rows()
        input_ids = torch.roll(batch.input_ids, -1)
        input_ids[last] = tail
        maybe_detect_oob(input_ids, 0, self._parts.vocab_size, "draft_prefill.input_ids")
        hidden = self._run(batch, input_ids, batch.positions, features, batch.out_cache_loc)
        with grouped():
            self._pool.probe_written(batch.out_cache_loc)
            maybe_detect_nan(hidden, "draft_prefill.hidden_states")
        self.keep(batch.req_pool_indices, self._forward.read_out(hidden[last]))

    def _run(
        self, layout: ExtendLayout, input_ids: Tensor, positions: Tensor, features: Tensor, slots: Tensor
    ) -> Tensor:
        """One draft forward over chunks of any length, one after another: hidden [Σext, Hd]."""
        metadata = self._parts.planner.extend(layout, self._workspace)
        attention = self._parts.draft_attention.bind(metadata, self._pool, slots)
        return self.model.forward(input_ids, positions, self.model.project(features), attention)

    def _probe_inputs(self, compacted: Compacted) -> None:
        """Probe what is about to be embedded and projected."""
        with grouped():
            maybe_detect_oob(compacted.predict, 0, self._parts.vocab_size, "draft_extend.input_ids")
            maybe_detect_nan(compacted.features, "draft_extend.features")

    def keep(self, rows: Tensor, start: ExtendOutputs) -> None:
        """Store the start of these rows' next draft loop."""
        with grouped():
            maybe_detect_nan(start.topk_p, "draft_extend.topk_p")
            maybe_detect_oob(start.topk_index, 0, self.model.vocab_size, "draft_extend.topk_index")
        self.state.store(rows, start.topk_p, start.topk_index, start.hidden_states)

    def _tail_tokens(self, batch: PrefillBatch, next_ids: Tensor) -> Tensor:
        """The token after each chunk: the sampled one; on a non-final chunk the prompt's own next token."""
        return torch.where(batch.final, next_ids, batch.next_prompt_ids)


def prepare_cached_prefix(request: Request, pool: KVPool) -> None:
    """Zero the draft KV that a request's cached prefix lacks: unwritten memory may hold anything."""
    slots = request.unwritten_draft_slots
    if slots is not None and slots.numel():
        pool.zero(slots)
    request.unwritten_draft_slots = None

"""Stage 6, draft extend: one draft forward over the accepted tokens, which writes their draft KV.

Every request has T rows, whatever it accepted: those past the accepted ones are computed and not read. The top-k at the
last accepted row are the roots of the next tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_nonfinite, maybe_detect_oob
from specdebug.engine.graph.forward import ForwardLauncher, StepForward
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import DraftModel, LayerAttention
from specdebug.engine.textbook.attention.metadata import Metadata
from specdebug.engine.textbook.attention.planner import AttentionPlanner, SequenceLayout
from specdebug.engine.textbook.attention.workspace import Workspace
from specdebug.engine.textbook.speculative.commit import Compacted, last_accepted_rows
from specdebug.engine.textbook.speculative.draft import DraftStateTable
from specdebug.engine.textbook.speculative.tree import top_k_probs
from specdebug.engine.workers.protocol import WorkerParts
from specdebug.events import Forward


@dataclass(frozen=True)
class ExtendInputs:
    """input_ids, positions, out_cache_loc: int64 [B·T]. features: [B·T, F]. accept_lengths, req_pool_indices,
    seq_lens (L before the step): int64 [B]."""

    input_ids: Tensor
    positions: Tensor
    out_cache_loc: Tensor
    features: Tensor
    accept_lengths: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor


@dataclass(frozen=True)
class ExtendOutputs:
    """The start of the next draft loop: topk_p, topk_index [B, K]; hidden_states [B, Hd]."""

    topk_p: Tensor
    topk_index: Tensor
    hidden_states: Tensor


class ExtendForward(StepForward[ExtendInputs, ExtendOutputs]):
    """The callable: one draft forward over accepted tokens, read out at each request's last accepted row."""

    name: Forward = "draft_extend"

    def __init__(self, model: DraftModel, pool: KVPool, *, topk: int, tree_size: int) -> None:
        self.model = model
        self.pool = pool
        self.topk = topk
        self.tree_size = tree_size

    def plan(
        self, planner: AttentionPlanner, inputs: ExtendInputs, lens: tuple[int, ...], workspace: Workspace, slack: int
    ) -> list[Metadata]:
        batch = SequenceLayout(inputs.req_pool_indices, inputs.seq_lens, lens, slack)
        return [planner.extend_uniform(batch, self.tree_size, workspace)]

    def run(self, inputs: ExtendInputs, attentions: Sequence[LayerAttention]) -> ExtendOutputs:
        """Compute T rows each."""
        features = self.model.project(inputs.features)
        hidden = self.model.forward(inputs.input_ids, inputs.positions, features, attentions[0])
        return self.read_out(hidden.index_select(0, last_accepted_rows(inputs.accept_lengths, self.tree_size)))

    def read_out(self, hidden: Tensor) -> ExtendOutputs:
        """hidden [B, Hd] at each request's last position."""
        logits = self.model.logits(hidden)
        maybe_detect_nonfinite(logits, "draft_extend.logits")
        topk_p, topk_index = top_k_probs(logits, self.topk)
        return ExtendOutputs(topk_p, topk_index, hidden)


@dataclass(frozen=True, eq=False)
class ExtendStage:
    """Extends the draft over the accepted tokens, and keeps its top-k for the next step."""

    parts: WorkerParts
    forward: ExtendForward
    launcher: ForwardLauncher[ExtendInputs, ExtendOutputs]
    state: DraftStateTable

    def run(self, batch: SequenceLayout, compacted: Compacted, slots: Tensor) -> None:
        """``batch`` has the lengths before the step. slots: int64 [B·T], those that the verify wrote."""
        parts, nodes = self.parts, self.parts.spec.tree_size
        self.probe_inputs(compacted)
        inputs = ExtendInputs(
            input_ids=compacted.predict,
            positions=(batch.seq_lens.unsqueeze(1) + torch.arange(nodes, device=parts.device)).view(-1),
            out_cache_loc=slots,
            features=compacted.features,
            accept_lengths=compacted.accept_lengths,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
        )
        start = self.launcher.run(inputs, batch.seq_lens_cpu)
        with grouped():
            parts.pools.draft.probe_written(slots)
            self.keep(batch.req_pool_indices, start)

    def probe_inputs(self, compacted: Compacted) -> None:
        """Probe what is about to be embedded and projected."""
        with grouped():
            maybe_detect_oob(compacted.predict, 0, self.parts.vocab_size, "draft_extend.input_ids")
            maybe_detect_nan(compacted.features, "draft_extend.features")

    def keep(self, rows: Tensor, start: ExtendOutputs) -> None:
        """Store the start of these rows' next draft loop."""
        with grouped():
            maybe_detect_nan(start.topk_p, "draft_extend.topk_p")
            maybe_detect_oob(start.topk_index, 0, self.parts.draft.vocab_size, "draft_extend.topk_index")
        self.state.store_draft(rows, start.topk_p, start.topk_index, start.hidden_states)

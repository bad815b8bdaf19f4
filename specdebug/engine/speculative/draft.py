"""Stage 1, draft: S selections and S - 1 draft forwards grow candidates from the last accepted position.

The roots come from the last draft extend; ``selection.py`` says which candidates go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_oob, maybe_detect_page_aligned
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.planner import AttentionPlanner, DraftLayout
from specdebug.engine.attention.workspace import Workspace
from specdebug.engine.kernels.cache_locs import DraftCacheLocs, assign_draft_cache_locs
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.speculative.forward import ForwardLauncher
from specdebug.engine.speculative.passes import DraftPasses
from specdebug.engine.speculative.protocol import WorkerParts
from specdebug.engine.speculative.selection import DraftCandidates, Roots, per_branch
from specdebug.engine.speculative.state import DraftState


@dataclass(frozen=True)
class DraftInputs:
    """topk_p: float32 [B, K], topk_index: int64 [B, K] (draft-vocabulary ids), hidden_states: [B, Hd]: the last draft
    extend's output at position L - 1. seq_lens, req_pool_indices: int64 [B]. positions: int64 [B·K], L per branch.
    out_cache_loc: int64 [B·K, S].
    """

    topk_p: Tensor
    topk_index: Tensor
    hidden_states: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    positions: Tensor
    out_cache_loc: Tensor


class DraftLoop(DraftPasses[DraftInputs]):
    """The loop over one draft model and its pool."""

    def plan(
        self,
        planner: AttentionPlanner,
        inputs: DraftInputs,
        lens_cpu: tuple[int, ...],
        workspace: Workspace,
        slack: int = 0,
    ) -> list[Metadata]:
        layout = DraftLayout(inputs.req_pool_indices, inputs.seq_lens, inputs.positions, inputs.out_cache_loc, lens_cpu)
        return planner.draft_decode(layout, workspace)

    def locs(self, inputs: DraftInputs) -> list[Tensor]:
        """Slots that each forward writes, int64 [B·K]: column i of ``out_cache_loc`` for forward i."""
        return list(inputs.out_cache_loc[:, : self.num_steps - 1].unbind(1))

    def run(self, inputs: DraftInputs, attentions: Sequence[LayerAttention]) -> DraftCandidates:
        """S - 1 forwards, each under its own one of ``attentions``."""
        hidden, lengths = inputs.hidden_states, inputs.seq_lens
        if self.topk > 1:
            hidden, lengths = per_branch(hidden, self.topk), per_branch(lengths, self.topk)

        def forward(step: int, tokens: Tensor, hidden: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
            return self._forward(step, tokens, hidden, inputs, lengths, parents, attentions[step])

        roots = Roots(inputs.topk_p, self.model.to_target_ids(inputs.topk_index), hidden)
        candidates = self._selection.grow(roots, forward)
        if attentions:
            self.pool.probe_written(inputs.out_cache_loc[:, : self.num_steps - 1])
        return candidates

    def _forward(
        self,
        step: int,
        tokens: Tensor,
        hidden: Tensor,
        inputs: DraftInputs,
        lengths: Tensor,
        parents: Tensor,
        attention: LayerAttention,
    ) -> tuple[Tensor, Tensor]:
        """One draft forward at positions L + step: logits [B·K, Vd], hidden [B·K, Hd]. lengths: int64 [B·K], L of each
        branch, from ``seq_lens`` and not from ``positions``. parents: int64 [B, K], branches that ``hidden`` is of."""
        positions = inputs.positions + step
        with grouped():
            maybe_detect_oob(positions, step, step + 1, "draft.forward.positions", relative_to=lengths)
            maybe_detect_oob(tokens, 0, self.target_vocab_size, "draft.forward.input_ids")
        hidden = self.model.forward(tokens, positions, hidden, attention)
        return self._read_out(step, tokens, parents, hidden), hidden


@dataclass(frozen=True, eq=False)
class DraftStage:
    """Drafts for a batch from the state of the last step, into slots that its requests hold in reserve."""

    parts: WorkerParts
    loop: ForwardLauncher[DraftInputs, DraftCandidates]

    def run(self, rows: Tensor, state: DraftState, verify_slots: Tensor, lens_cpu: tuple[int, ...]) -> DraftCandidates:
        """rows: int64 [B]. verify_slots: int64 [B·T]. Lengths are at most ``lens_cpu``."""
        return self.run_on(rows, state, self._slots(rows, state.seq_lens, verify_slots), lens_cpu)

    def run_on(
        self, rows: Tensor, state: DraftState, locs: DraftCacheLocs, lens_cpu: tuple[int, ...]
    ) -> DraftCandidates:
        """:meth:`run` on slots that are known."""
        parts, topk = self.parts, self.parts.spec.eagle_topk
        with grouped():
            maybe_detect_oob(state.bonus, 0, parts.vocab_size, "draft.bonus")
            maybe_detect_oob(locs.out_cache_loc, 0, parts.pools.draft.size, "draft.out_cache_loc")
        self._copy_prefix_tails(rows, state.seq_lens, locs)
        positions = state.seq_lens.repeat_interleave(topk) if topk > 1 else state.seq_lens
        inputs = DraftInputs(
            state.topk_p, state.topk_index, state.hidden_states, rows, state.seq_lens, positions, locs.out_cache_loc
        )
        return self.loop.run(inputs, lens_cpu)

    def _slots(self, rows: Tensor, seq_lens: Tensor, verify_slots: Tensor) -> DraftCacheLocs:
        """Slots of the draft loop. A chain continues the row, so they are the first ones of the verify."""
        spec = self.parts.spec
        if spec.eagle_topk == 1:
            return DraftCacheLocs(verify_slots.view(rows.numel(), -1)[:, : spec.num_steps], None, None)
        return assign_draft_cache_locs(
            self.parts.pools.req_to_token.table,
            rows,
            seq_lens,
            topk=spec.eagle_topk,
            num_steps=spec.num_steps,
            page_size=self.parts.config.page_size,
        )

    def _copy_prefix_tails(self, rows: Tensor, seq_lens: Tensor, locs: DraftCacheLocs) -> None:
        """Give every branch a copy of the page that the prefix ends in, where branches own whole pages."""
        if locs.dup_src is None or locs.dup_tgt is None:
            return
        pools, page_size = self.parts.pools, self.parts.config.page_size
        tail_start = pools.req_to_token.table[rows, seq_lens - seq_lens % page_size]
        maybe_detect_page_aligned(tail_start, page_size, "draft.prefix_tail")
        pools.draft.move_kv_cache(locs.dup_tgt, locs.dup_src)

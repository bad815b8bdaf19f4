"""Stage 1, draft: S selections and S - 1 draft forwards grow candidates from the last accepted position.

The roots come from the state that the last step left, which is kept on the device and indexed by ``req_pool_indices``
(row 0 is padding); the host mirrors only lengths that it needs for allocation. ``tree.py`` says which candidates go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nonfinite, maybe_detect_oob, maybe_detect_page_aligned
from specdebug.engine.graph.forward import ForwardLauncher, Inputs, StepForward
from specdebug.engine.kernels.cache_locs import DraftCacheLocs, assign_draft_cache_locs
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import DraftModel, LayerAttention
from specdebug.engine.textbook.attention.metadata import Metadata
from specdebug.engine.textbook.attention.planner import AttentionPlanner, DraftLayout
from specdebug.engine.textbook.attention.workspace import Workspace
from specdebug.engine.textbook.speculative.tree import DraftCandidates, Roots, Selection, per_branch
from specdebug.engine.workers.protocol import WorkerParts
from specdebug.events import DraftForward, Forward, Observers


@dataclass(frozen=True)
class StepState:
    """Rows of one batch, as every way of drafting keeps them. seq_lens (L), bonus: int64 [B]."""

    seq_lens: Tensor
    bonus: Tensor


class LengthTable:
    """The lengths that every way of drafting keeps. seq_lens, bonus: int64 [R + 1]."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.seq_lens = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self.bonus = torch.zeros(rows + 1, dtype=torch.int64, device=device)

    def store_lengths(self, rows: Tensor, seq_lens: Tensor, bonus: Tensor) -> None:
        """Publish new committed lengths and bonus tokens, before the draft extend runs."""
        self.seq_lens.index_copy_(0, rows, seq_lens)
        self.bonus.index_copy_(0, rows, bonus)


@dataclass(frozen=True)
class DraftState(StepState):
    """What an EAGLE head's next draft starts from. topk_p float32, topk_index int64: [B, K]. hidden_states: [B, Hd]."""

    topk_p: Tensor
    topk_index: Tensor
    hidden_states: Tensor


class DraftStateTable(LengthTable):
    """DraftState for every row of ``req_to_token``."""

    def __init__(self, rows: int, *, topk: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(rows, device)
        zeros = partial(torch.zeros, device=device)
        self._topk_p = zeros((rows + 1, topk), dtype=torch.float32)
        self._topk_index = zeros((rows + 1, topk), dtype=torch.int64)
        self._hidden = zeros((rows + 1, hidden_size), dtype=dtype)

    def gather(self, rows: Tensor) -> DraftState:
        """Return the start of the next draft of the given rows (int64 [B])."""
        return self.read(rows)

    def read(self, rows: Tensor) -> DraftState:
        """Copies of the given rows (int64 [B])."""
        columns = (self.seq_lens, self.bonus, self._topk_p, self._topk_index, self._hidden)
        return DraftState(*(column.index_select(0, rows) for column in columns))

    def store_draft(self, rows: Tensor, topk_p: Tensor, topk_index: Tensor, hidden_states: Tensor) -> None:
        """Keep what the draft extend predicts for the position after the bonus token."""
        self._topk_p.index_copy_(0, rows, topk_p)
        self._topk_index.index_copy_(0, rows, topk_index)
        self._hidden.index_copy_(0, rows, hidden_states)


class DraftPasses(StepForward[Inputs, DraftCandidates]):
    """One draft model's passes over one pool, and the selection of what goes on from one to the next."""

    name: Forward = "draft"

    def __init__(
        self,
        model: DraftModel,
        pool: KVPool,
        *,
        topk: int,
        num_steps: int,
        tree_size: int,
        target_vocab_size: int,
        observers: Observers,
    ) -> None:
        self.model = model
        self.pool = pool
        self.topk = topk
        self.num_steps = num_steps
        self.tree_size = tree_size
        self.target_vocab_size = target_vocab_size
        self._observers = observers
        self._selection = Selection(
            topk=topk,
            num_steps=num_steps,
            tree_size=tree_size,
            target_vocab_size=target_vocab_size,
            to_target_ids=model.to_target_ids,
            device=pool.device,
        )

    def _read_out(self, number: int, tokens: Tensor, parents: Tensor, hidden: Tensor) -> Tensor:
        """The logits [B·K, Vd] of pass ``number``, which computed hidden [B·K, Hd] of tokens (int64 [B·K]), whose
        parents (int64 [B, K]) are branches of the pass before."""
        logits = self.model.logits(hidden)
        maybe_detect_nonfinite(logits, "draft.forward.logits")
        self._observers.tell(DraftForward, number, tokens, parents.reshape(-1), logits)
        return logits


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
        self, planner: AttentionPlanner, inputs: DraftInputs, lens: tuple[int, ...], workspace: Workspace, slack: int
    ) -> list[Metadata]:
        layout = DraftLayout(inputs.req_pool_indices, inputs.seq_lens, inputs.positions, inputs.out_cache_loc, lens)
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

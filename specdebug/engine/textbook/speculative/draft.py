"""Stage 1, draft: S selections and S - 1 draft forwards grow candidates from the last accepted position. Stage 6, draft
extend: one draft forward over the accepted tokens, whose top-k at the last of them are the roots of the next tree.

What one step leaves for the next is kept on the device and indexed by ``req_pool_indices`` (row 0 is padding); the host
mirrors only lengths that it needs for allocation. ``tree.py`` says which candidates go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nonfinite, maybe_detect_oob
from specdebug.engine.config import SpeculativeConfig
from specdebug.engine.graph.runner import Inputs, StepForward
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import DraftModel, LayerAttention
from specdebug.engine.textbook.attention.planner import (
    AttentionPlanner,
    DraftLayout,
    Metadata,
    SequenceLayout,
    Workspace,
)
from specdebug.engine.textbook.speculative.accept import last_accepted_rows
from specdebug.engine.textbook.speculative.tree import DraftCandidates, Roots, Selection, per_branch, top_k_probs
from specdebug.events import DraftForward, Forward, Observers


@dataclass(frozen=True)
class StepState:
    """Rows of one batch, as every way of drafting keeps them. seq_lens (L), bonus: int64 [B]."""

    seq_lens: Tensor
    bonus: Tensor


State = TypeVar("State", bound=StepState)


class StateTable(Generic[State]):
    """What one step leaves for the next, for every row of ``req_to_token``; row 0, of padding, is never written.

    seq_lens, bonus: int64 [R + 1]. ``columns``: the shape of a row and the dtype of each other field, in order.
    """

    def __init__(
        self, state: type[State], rows: int, device: torch.device, *columns: tuple[tuple[int, ...], torch.dtype]
    ) -> None:
        self._state = state
        zeros = partial(torch.zeros, device=device)
        self.seq_lens, self.bonus = (zeros(rows + 1, dtype=torch.int64) for _ in range(2))
        self.columns = [zeros((rows + 1, *shape), dtype=dtype) for shape, dtype in columns]

    def gather(self, rows: Tensor) -> State:
        """Return the start of the next draft of the given rows (int64 [B])."""
        return self.read(rows)

    def read(self, rows: Tensor) -> State:
        """Copies of the given rows (int64 [B])."""
        return self._state(*(column.index_select(0, rows) for column in (self.seq_lens, self.bonus, *self.columns)))

    def store_lengths(self, rows: Tensor, seq_lens: Tensor, bonus: Tensor) -> None:
        """Publish new committed lengths and bonus tokens, before the draft extend runs."""
        self.seq_lens.index_copy_(0, rows, seq_lens)
        self.bonus.index_copy_(0, rows, bonus)

    def store(self, rows: Tensor, *values: Tensor) -> None:
        """Keep the other fields [B, ...] of the given rows."""
        for column, value in zip(self.columns, values, strict=True):
            column.index_copy_(0, rows, value)


@dataclass(frozen=True)
class DraftState(StepState):
    """What an EAGLE head's next draft starts from. topk_p float32, topk_index int64: [B, K]. hidden_states: [B, Hd]."""

    topk_p: Tensor
    topk_index: Tensor
    hidden_states: Tensor


class DraftPasses(StepForward[Inputs, DraftCandidates]):
    """One draft model's passes over one pool, and the selection of what goes on from one to the next."""

    name: Forward = "draft"

    def __init__(
        self, model: DraftModel, pool: KVPool, spec: SpeculativeConfig, *, target_vocab_size: int, observers: Observers
    ) -> None:
        self.model, self.pool = model, pool
        self.topk, self.num_steps, self.tree_size = spec.eagle_topk, spec.num_steps, spec.tree_size
        self.target_vocab_size = target_vocab_size
        self._observers = observers
        self._selection = Selection(spec, target_vocab_size, model.to_target_ids, pool.device)

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
            hidden = self._forward(step, tokens, hidden, inputs, lengths, attentions[step])
            return self._read_out(step, tokens, parents, hidden), hidden

        roots = Roots(inputs.topk_p, self.model.to_target_ids(inputs.topk_index), hidden)
        candidates = self._selection.grow(roots, forward)
        if attentions:
            self.pool.probe_written(inputs.out_cache_loc[:, : self.num_steps - 1])
        return candidates

    def _forward(
        self, step: int, tokens: Tensor, hidden: Tensor, inputs: DraftInputs, lengths: Tensor, attention: LayerAttention
    ) -> Tensor:
        """One draft forward at positions L + step: hidden [B·K, Hd]. lengths: int64 [B·K], L of each branch, from
        ``seq_lens`` and not from ``positions``."""
        positions = inputs.positions + step
        with grouped():
            maybe_detect_oob(positions, step, step + 1, "draft.forward.positions", relative_to=lengths)
            maybe_detect_oob(tokens, 0, self.target_vocab_size, "draft.forward.input_ids")
        return self.model.forward(tokens, positions, hidden, attention)


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
    """One draft forward over accepted tokens. Every request has T rows, whatever it accepted: those past the accepted
    ones are computed and not read."""

    name: Forward = "draft_extend"

    def __init__(self, model: DraftModel, pool: KVPool, *, topk: int, tree_size: int) -> None:
        self.model, self.pool = model, pool
        self.topk, self.tree_size = topk, tree_size

    def plan(
        self, planner: AttentionPlanner, inputs: ExtendInputs, lens: tuple[int, ...], workspace: Workspace, slack: int
    ) -> list[Metadata]:
        batch = SequenceLayout(inputs.req_pool_indices, inputs.seq_lens, lens, slack)
        return [planner.extend_uniform(batch, self.tree_size, workspace)]

    def run(self, inputs: ExtendInputs, attentions: Sequence[LayerAttention]) -> ExtendOutputs:
        features = self.model.project(inputs.features)
        hidden = self.model.forward(inputs.input_ids, inputs.positions, features, attentions[0])
        return self.read_out(hidden.index_select(0, last_accepted_rows(inputs.accept_lengths, self.tree_size)))

    def read_out(self, hidden: Tensor) -> ExtendOutputs:
        """hidden [B, Hd] at each request's last position."""
        logits = self.model.logits(hidden)
        maybe_detect_nonfinite(logits, "draft_extend.logits")
        topk_p, topk_index = top_k_probs(logits, self.topk)
        return ExtendOutputs(topk_p, topk_index, hidden)

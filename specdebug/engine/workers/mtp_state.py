"""The state of drafting by next-n layers: N layers, S = N drafts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specdebug.engine.textbook.speculative.draft import LengthTable, StepState


@dataclass(frozen=True)
class MTPState(StepState):
    """draft_tokens: int64 [B, N], the drafts of the next step, one of each layer. hidden_states: [B, N-1, H], as of
    ``RecentPositions``. topk_p, topk_index: None, for there is nothing left to choose from."""

    draft_tokens: Tensor
    hidden_states: Tensor
    topk_p: None = None
    topk_index: None = None


@dataclass(frozen=True)
class RecentPositions:
    """The last N - 1 positions with target KV, L-N+1 .. L-1, which the next extend goes over once more: some
    layers have read drafts there.

    next_ids: int64 [B, N-1], the token after each. hidden_states: [B, N-1, H], the target's. Entries of positions
    before the first mean nothing.
    """

    next_ids: Tensor
    hidden_states: Tensor


class MTPStateTable(LengthTable):
    """MTPState and RecentPositions for every row of ``req_to_token``. Row 0, of padding, is never written."""

    def __init__(
        self, rows: int, *, num_layers: int, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(rows, device)
        zeros, earlier = partial(torch.zeros, device=device), num_layers - 1
        self._draft_tokens = zeros((rows + 1, num_layers), dtype=torch.int64)
        self._next_ids = zeros((rows + 1, earlier), dtype=torch.int64)
        self._hidden = zeros((rows + 1, earlier, hidden_size), dtype=dtype)

    def gather(self, rows: Tensor) -> MTPState:
        """Return the start of the next step of the given rows (int64 [B])."""
        return self.read(rows)

    def read(self, rows: Tensor) -> MTPState:
        """Copies of the given rows (int64 [B])."""
        columns = (self.seq_lens, self.bonus, self._draft_tokens, self._hidden)
        seq_lens, bonus, draft_tokens, hidden_states = (column.index_select(0, rows) for column in columns)
        return MTPState(seq_lens, bonus, draft_tokens, hidden_states)

    @property
    def recent_table(self) -> tuple[Tensor, Tensor]:
        """``RecentPositions`` of all rows, where they are kept: int64 [R + 1, N-1] and [R + 1, N-1, H]."""
        return self._next_ids, self._hidden

    def recent(self, rows: Tensor) -> RecentPositions:
        """Copies of what is kept of the last positions of the given rows (int64 [B])."""
        return RecentPositions(self._next_ids.index_select(0, rows), self._hidden.index_select(0, rows))

    def store_drafts(self, rows: Tensor, draft_tokens: Tensor, recent: RecentPositions) -> None:
        """Keep what the layers predict for the positions after the bonus token, and the last positions."""
        self._draft_tokens.index_copy_(0, rows, draft_tokens)
        self._next_ids.index_copy_(0, rows, recent.next_ids)
        self._hidden.index_copy_(0, rows, recent.hidden_states)

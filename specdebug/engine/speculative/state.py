"""The state that one iteration leaves for the next, kept on the device and indexed by ``req_pool_indices``.

Row 0 is padding. The host mirrors only lengths it needs for allocation; batches are gathered from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepState:
    """Rows of one batch, as every way of drafting keeps them. seq_lens (L), bonus: int64 [B]."""

    seq_lens: Tensor
    bonus: Tensor


class StateTable(Protocol):
    """``StepState`` for every row of ``req_to_token``, and what one way of drafting adds to it."""

    seq_lens: Tensor
    bonus: Tensor

    def gather(self, rows: Tensor) -> StepState:
        """Return the start of the next draft of the given rows (int64 [B])."""

    def read(self, rows: Tensor) -> StepState:
        """Return copies of the drafting state of the given rows (int64 [B]), for who looks from outside."""

    def store_lengths(self, rows: Tensor, seq_lens: Tensor, bonus: Tensor) -> None:
        """Publish new committed lengths and bonus tokens, before the draft extend runs."""


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

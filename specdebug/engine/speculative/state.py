"""The state that one iteration leaves for the next, kept on the device and indexed by ``req_pool_indices``.

Row 0 is padding. The host mirrors only lengths it needs for allocation; batches are gathered from here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftState:
    """Rows of one batch. seq_lens (L), bonus: int64 [B]. topk_p float32, topk_index int64: [B, K].
    hidden_states: [B, Hd]."""

    seq_lens: Tensor
    bonus: Tensor
    topk_p: Tensor
    topk_index: Tensor
    hidden_states: Tensor


class DraftStateTable:
    """DraftState for every row of ``req_to_token``. seq_lens, bonus: int64 [R + 1]."""

    def __init__(self, rows: int, *, topk: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        size = rows + 1
        self.seq_lens = torch.zeros(size, dtype=torch.int64, device=device)
        self.bonus = torch.zeros(size, dtype=torch.int64, device=device)
        self._topk_p = torch.zeros((size, topk), dtype=torch.float32, device=device)
        self._topk_index = torch.zeros((size, topk), dtype=torch.int64, device=device)
        self._hidden = torch.zeros((size, hidden_size), dtype=dtype, device=device)

    def gather(self, rows: Tensor) -> DraftState:
        """Copies of the given rows (int64 [B])."""
        return DraftState(
            self.seq_lens.index_select(0, rows),
            self.bonus.index_select(0, rows),
            self._topk_p.index_select(0, rows),
            self._topk_index.index_select(0, rows),
            self._hidden.index_select(0, rows),
        )

    def store_lengths(self, rows: Tensor, seq_lens: Tensor, bonus: Tensor) -> None:
        """Publish new committed lengths and bonus tokens, before the draft extend runs."""
        self.seq_lens.index_copy_(0, rows, seq_lens)
        self.bonus.index_copy_(0, rows, bonus)

    def store_draft(self, rows: Tensor, topk_p: Tensor, topk_index: Tensor, hidden_states: Tensor) -> None:
        """Keep what the draft extend predicts for the position after the bonus token."""
        self._topk_p.index_copy_(0, rows, topk_p)
        self._topk_index.index_copy_(0, rows, topk_index)
        self._hidden.index_copy_(0, rows, hidden_states)

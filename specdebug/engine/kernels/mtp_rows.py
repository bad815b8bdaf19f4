"""The rows that next-n layers extend over, put together from a step's accepted tokens and the positions before them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from specdebug.engine.kernels.twin import triton_on_gpu


class MTPRows(NamedTuple):
    """W = T + N - 1 rows of each request, and the last N - 1 positions that the next step needs again.

    next_ids, positions: int64 [B·W], of each row the token after its position. hidden_states: [B·W, H]. last: int64
    [B], the row of each request's last accepted token. kept_ids: int64 [B, N-1]. kept_hidden: [B, N-1, H].
    """

    next_ids: Tensor
    positions: Tensor
    hidden_states: Tensor
    last: Tensor
    kept_ids: Tensor
    kept_hidden: Tensor


@triton_on_gpu
def mtp_rows(
    input_ids: Tensor,
    features: Tensor,
    recent_ids: Tensor,
    recent_hidden: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    accept_lengths: Tensor,
) -> MTPRows:
    """Put N - 1 recent positions in front of each request's T new ones. A request that is shorter than N - 1 has that
    many fewer in front, and repeats its last row behind.

    input_ids: int64 [B·T], accepted tokens first. features: [B·T, H]. recent_ids: int64 [R + 1, N-1] and recent_hidden
    [R + 1, N-1, H], by row of ``req_to_token``. req_pool_indices, seq_lens (L before the step), accept_lengths: int64
    [B].
    """
    batch, earlier = seq_lens.numel(), recent_ids.shape[1]
    ids = torch.cat([recent_ids.index_select(0, req_pool_indices), input_ids.view(batch, -1)], dim=1)
    hidden = torch.cat(
        [recent_hidden.index_select(0, req_pool_indices), features.view(batch, -1, features.shape[1])], dim=1
    ).flatten(0, 1)
    number, end, before, offset = _numbers(batch, ids.shape[1], earlier, ids.device)
    started = seq_lens.clamp(min=earlier).unsqueeze(1)  # the position of a request's first new row
    lacking = started - seq_lens.unsqueeze(1)
    accepted = accept_lengths.unsqueeze(1)
    at = torch.minimum(number + lacking, end).view(-1)
    kept = number[:, :earlier] + accepted
    return MTPRows(
        ids.view(-1).index_select(0, at),
        (started + offset).view(-1),
        hidden.index_select(0, at),
        (before + accepted - lacking).view(-1),
        ids.view(-1)[kept],
        hidden[kept],
    )


@lru_cache(maxsize=64)
def _numbers(batch: int, width: int, earlier: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each request: its rows [B, W], the last of them [B, 1], the one before its first new one [B, 1]; where each
    lies from that first new one, [W]. int64, never written."""
    number = torch.arange(batch * width, device=device).view(batch, width)
    offset = torch.arange(-earlier, width - earlier, device=device)
    return number, number[:, -1:], number[:, :1] + earlier - 1, offset

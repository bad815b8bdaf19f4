"""Rows of a KV pool are written and moved, and rows that next-n layers extend over put together."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from specdebug.engine.kernels.twin import triton_on_gpu


class KVDestination(NamedTuple):
    """The place of a batch's keys and values in one layer: its caches k and v [N, Hkv, D], and int64 slots [n]."""

    k: Tensor
    v: Tensor
    slots: Tensor


@triton_on_gpu
def write_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Store k, v [n, Hkv, D], of any strides, at int64 ``slots`` [n] of one layer's k_cache, v_cache [N, Hkv, D].
    Raises IndexError if a slot lies outside the cache (on a CPU; a device writes where the slot points)."""
    k_cache.index_copy_(0, slots, k)
    v_cache.index_copy_(0, slots, v)


@triton_on_gpu
def move_kv(buffers: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy buffers[:, src_loc] to buffers[:, tgt_loc] (int64 [m]); all reads finish before any write.

    buffers: [2·layers, N, Hkv, D], contiguous in its last two dimensions. Either copy to one target may win. Raises
    IndexError if a slot lies outside the buffers (on a CPU; a device reads and writes where the slot points).
    """
    buffers.index_copy_(1, tgt_loc, buffers.index_select(1, src_loc))


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

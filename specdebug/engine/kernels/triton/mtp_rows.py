"""Triton twin of :mod:`specdebug.engine.kernels.mtp_rows`: one launch, a program for each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdebug.engine.kernels.mtp_rows import MTPRows

_MAX_TILE = 2048


def mtp_rows(
    input_ids: Tensor,
    features: Tensor,
    recent_ids: Tensor,
    recent_hidden: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    accept_lengths: Tensor,
) -> MTPRows:
    batch, earlier, size = seq_lens.numel(), recent_ids.shape[1], features.shape[1]
    width = earlier + (input_ids.numel() // batch if batch else 0)
    device, ids, kind = features.device, torch.int64, features.dtype
    rows = MTPRows(
        torch.empty(batch * width, dtype=ids, device=device),
        torch.empty(batch * width, dtype=ids, device=device),
        torch.empty((batch * width, size), dtype=kind, device=device),
        torch.empty(batch, dtype=ids, device=device),
        torch.empty((batch, earlier), dtype=ids, device=device),
        torch.empty((batch, earlier, size), dtype=kind, device=device),
    )
    if batch:
        tile = min(triton.next_power_of_2(size), _MAX_TILE)
        _gather[(batch * (width + earlier), triton.cdiv(size, tile))](
            input_ids,
            features,
            recent_ids,
            recent_hidden,
            req_pool_indices,
            seq_lens,
            accept_lengths,
            *rows,
            *features.stride(),
            EARLIER=earlier,
            WIDTH=width,
            SIZE=size,
            TILE=tile,
        )
    return rows


@triton.jit
def _gather(
    input_ids,
    features,
    recent_ids,
    recent_hidden,
    req_pool_indices,
    seq_lens,
    accept_lengths,
    next_ids,
    positions,
    hidden_states,
    last,
    kept_ids,
    kept_hidden,
    row_stride,
    column_stride,
    EARLIER: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Grid: (rows and kept positions of all requests, pieces of a hidden state)."""
    b = (tl.program_id(0) // (WIDTH + EARLIER)).to(tl.int64)
    place = tl.program_id(0) % (WIDTH + EARLIER)
    is_row = place < WIDTH
    length = tl.load(seq_lens + b)
    accepted = tl.load(accept_lengths + b)
    started = tl.maximum(length, EARLIER)
    lacking = started - length
    # of the recent positions and the new ones, one after another
    source = tl.where(is_row, tl.minimum(place + lacking, WIDTH - 1), accepted + place - WIDTH)
    is_new = source >= EARLIER
    new = b * (WIDTH - EARLIER) + source - EARLIER
    recent = tl.load(req_pool_indices + b) * EARLIER + source

    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < SIZE
    fresh = tl.load(features + new * row_stride + column * column_stride, mask=inside & is_new, other=0)
    stored = tl.load(recent_hidden + recent * SIZE + column, mask=inside & (source < EARLIER), other=0)
    hidden = tl.where(is_new, fresh, stored)
    row, kept = b * WIDTH + place, b * EARLIER + place - WIDTH
    tl.store(hidden_states + row * SIZE + column, hidden, mask=inside & is_row)
    tl.store(kept_hidden + kept * SIZE + column, hidden, mask=inside & (place >= WIDTH))

    first = tl.program_id(1) == 0
    token = tl.load(input_ids + new, mask=is_new, other=0) + tl.load(
        recent_ids + recent, mask=source < EARLIER, other=0
    )
    tl.store(next_ids + row, token, mask=first & is_row)
    tl.store(kept_ids + kept, token, mask=first & (place >= WIDTH))
    tl.store(positions + row, started - EARLIER + place, mask=first & is_row)
    tl.store(last + b, b * WIDTH + EARLIER - 1 + accepted - lacking, mask=first & (place == 0))

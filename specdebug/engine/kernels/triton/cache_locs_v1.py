"""Triton twin of :mod:`specdebug.engine.kernels.cache_locs_v1`: a program for each piece of a request's slots."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TILE = 256


def write_slots(
    table: Tensor, req_pool_indices: Tensor, firsts: Tensor, offsets: Tensor, out_cache_loc: Tensor
) -> None:
    total, batch = out_cache_loc.numel(), firsts.numel()
    if total:
        # the host does not know who has how many: pieces that a request has no slots for do nothing
        _write_pieces[(batch, triton.cdiv(total, _TILE))](
            table, req_pool_indices, firsts, offsets, out_cache_loc, table.stride(0), TILE=_TILE
        )


@triton.jit
def _write_pieces(table, rows, firsts, offsets, slots, table_stride, TILE: tl.constexpr):
    b = tl.program_id(0)
    start = tl.load(offsets + b)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < tl.load(offsets + b + 1) - start
    cells = table + tl.load(rows + b).to(tl.int64) * table_stride + tl.load(firsts + b).to(tl.int64)
    slot = tl.load(slots + start + place, mask=inside, other=0)
    tl.store(cells + place, slot.to(tl.int32), mask=inside)

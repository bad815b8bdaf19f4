"""Slots that the worker v1 has just allocated: written to the rows, and those of a draft packed.

The layout of a draft is that of :mod:`specdebug.engine.kernels.cache_locs`: with topk and page size above one each
branch has whole pages, and what lies before and behind its S draft slots are holes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.kernels.cache_locs import DraftCacheLocs, assign_draft_cache_locs
from specdebug.engine.kernels.pointer import raw_scatter
from specdebug.engine.kernels.twin import triton_on_gpu


def assign_draft_cache_locs_v1(
    table: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    held_lens: Tensor,
    offsets: Tensor,
    out_cache_loc: Tensor,
    *,
    topk: int,
    num_steps: int,
    page_size: int,
) -> DraftCacheLocs:
    """Write a batch's allocated slots to its rows, and pack those to draft into: S for each branch.

    Upstream packs ``out_cache_loc`` in place, in the launch that also writes the rows: where requests have more slots
    than they draft into, a program overwrites what one with a lower number has yet to read. Here every slot is in its
    row before any is packed, and what is packed comes from the rows and goes to memory of its own. So the programs of
    either launch may run in any order.

    table: int32 [R + 1, width], written. req_pool_indices, seq_lens (L), held_lens: int64 [B]. out_cache_loc: int64,
    the slots of all requests one after another. Those of request b are [offsets[b], offsets[b + 1]) and stand for cells
    from held_lens[b] on; before that the row has its own. offsets: int64 [B + 1].
    Raises IllegalAddress for a cell outside the table's allocation. Source: SGLang ``assign_draft_cache_locs`` (v1).
    """
    write_slots(table, req_pool_indices, held_lens, offsets, out_cache_loc)
    return assign_draft_cache_locs(
        table, req_pool_indices, seq_lens, topk=topk, num_steps=num_steps, page_size=page_size
    )


@triton_on_gpu
def write_slots(
    table: Tensor, req_pool_indices: Tensor, firsts: Tensor, offsets: Tensor, out_cache_loc: Tensor
) -> None:
    """Store each request's slots in its row, from cell ``firsts`` (int64 [B]) on. The other shapes are those of
    :func:`assign_draft_cache_locs_v1`. Raises IllegalAddress if a cell lies outside the table's allocation."""
    first = req_pool_indices * table.stride(0) + firsts - offsets[:-1]
    cells = torch.repeat_interleave(first, offsets.diff()) + torch.arange(out_cache_loc.numel(), device=table.device)
    raw_scatter(table, cells, out_cache_loc, "write_slots.req_to_token")

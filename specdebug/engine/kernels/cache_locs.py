"""The slots that the draft loop and a verify write: reserved row cells, or, for the worker v1, slots just allocated.

With topk 1 or page size 1, branch k's step j takes row cell L + k·S + j. With both above 1 a branch owns whole pages:
branch k takes cells from L - r + k·n·P (r = L mod P, n = ceil((r + S) / P)), its draft slots start at + r, and the r
prefix positions that share the tail page are duplicated into branches 1..K-1 of the draft pool.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from specdebug.engine.kernels.pointer import raw_gather, raw_scatter
from specdebug.engine.kernels.twin import triton_on_gpu


class DraftCacheLocs(NamedTuple):
    """out_cache_loc: int64 [B·K, S]. dup_src, dup_tgt: int64, prefix-tail copies due in the draft pool; None for none.

    On a CPU there is an entry for each copy. A GPU's host does not know how many those are: there, all B·(K-1)·P
    possible entries exist, and the rest copy slot 0, the padding slot, onto itself.
    """

    out_cache_loc: Tensor
    dup_src: Tensor | None
    dup_tgt: Tensor | None


@triton_on_gpu
def assign_draft_cache_locs(
    table: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, *, topk: int, num_steps: int, page_size: int
) -> DraftCacheLocs:
    """Read the draft slots of a batch from its reserved row cells.

    table: int32 [R + 1, width]. req_pool_indices, seq_lens: int64 [B].
    Source: SGLang ``assign_draft_cache_locs``, ``duplicate_prefix_tail_to_draft_branches``. Raises IllegalAddress if a
    cell lies outside the table's allocation.
    """
    device = seq_lens.device
    row = (req_pool_indices * table.stride(0)).view(-1, 1, 1)
    branch = torch.arange(topk, device=device).view(1, -1, 1)
    step = torch.arange(num_steps, device=device).view(1, 1, -1)
    lengths = seq_lens.view(-1, 1, 1)
    if topk == 1 or page_size == 1:
        cells = row + lengths + branch * num_steps + step
        slots = raw_gather(table, cells, "assign_draft_cache_locs.req_to_token")
        return DraftCacheLocs(slots.reshape(-1, num_steps).to(torch.int64), None, None)
    tail = lengths % page_size
    branch_cells = (tail + num_steps + page_size - 1) // page_size * page_size
    start = row + lengths - tail + branch * branch_cells
    slots = raw_gather(table, start + tail + step, "assign_draft_cache_locs.req_to_token")
    column = torch.arange(page_size, device=device).view(1, 1, -1)
    shared = (column < tail).expand(-1, topk - 1, -1)
    tail_cells = (row + lengths - tail + column) * (column < tail)
    src = raw_gather(table, tail_cells, "assign_draft_cache_locs.prefix_tail")
    tgt = raw_gather(table, (start[:, 1:] + column) * shared, "assign_draft_cache_locs.branch_head")
    return DraftCacheLocs(
        slots.reshape(-1, num_steps).to(torch.int64),
        src.expand(-1, topk - 1, -1)[shared].to(torch.int64),
        tgt[shared].to(torch.int64),
    )


@triton_on_gpu
def verify_cache_locs(table: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, num_tokens: int) -> Tensor:
    """Row cells [L, L + num_tokens) of each request: int64 [B·num_tokens].
    Raises IllegalAddress if a cell lies outside the table's allocation."""
    column = torch.arange(num_tokens, device=seq_lens.device)
    first = torch.add(seq_lens, req_pool_indices, alpha=table.stride(0))
    cells = (first.unsqueeze(1) + column).view(-1)
    return raw_gather(table, cells, "verify_cache_locs.req_to_token").to(torch.int64)


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

"""Lists of the slots that each sequence attends: packed one after another, or as page tables."""

import torch
from torch import Tensor

from specdebug.engine.kernels.pointer import raw_block, raw_gather, raw_scatter, raw_store
from specdebug.engine.kernels.twin import triton_on_gpu


@triton_on_gpu
def create_kv_indices(
    table: Tensor, req_pool_indices: Tensor, kv_lens: Tensor, kv_indptr: Tensor, kv_indices: Tensor
) -> None:
    """Copy the first ``kv_lens[b]`` cells of each request's row to ``kv_indices[kv_indptr[b] :]``.

    table: int32 [R + 1, width]. req_pool_indices, kv_lens: int [B]. kv_indptr: int [B + 1]. kv_indices: 1-D. Raises
    IllegalAddress if a row or an offset lies outside its allocation.
    """
    starts = kv_indptr.tolist()
    for row, length, start in zip(req_pool_indices.tolist(), kv_lens.tolist(), starts, strict=False):
        cells = raw_block(table, row * table.stride(0), length, "create_kv_indices.req_to_token")
        raw_block(kv_indices, start, length, "create_kv_indices.kv_indices").copy_(cells)


@triton_on_gpu
def generate_draft_decode_kv_indices(
    table: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    topk: int,
    kv_indices: Tensor,
    num_forwards: int,
) -> None:
    """Fill row i of ``kv_indices`` for draft forward i: per branch, the prefix and i + 1 draft slots.

    Branch (b, k) of row i starts at K·Σ_{a<b}(L_a + i + 1) + k·(L_b + i + 1). Nothing checks that a row's content fits:
    what is too long runs on into the next row, as on a device.

    table: int32 [R + 1, width]. req_pool_indices, seq_lens: int64 [B]. out_cache_loc: int64 [B·K, S].
    kv_indices: int [num_forwards or more, width]; written. Source: SGLang PR 27338, the kernel of this name. Raises
    IllegalAddress if an access leaves its allocation.
    """
    rows, lengths = req_pool_indices.tolist(), seq_lens.tolist()
    prefixes = [
        raw_block(table, row * table.stride(0), length, "generate_draft_decode_kv_indices.req_to_token")
        for row, length in zip(rows, lengths, strict=True)
    ]
    drafted = out_cache_loc.view(len(rows), topk, -1)[:, :, :num_forwards].to(table.dtype)
    # per request, every branch at its longest: a forward packs the front of each
    whole = [
        torch.cat((prefix.expand(topk, -1), slots), dim=1) for prefix, slots in zip(prefixes, drafted, strict=True)
    ]
    for step in range(num_forwards):
        offset = step * kv_indices.stride(0)
        for cells, length in zip(whole, lengths, strict=True):
            packed = cells[:, : length + step + 1].reshape(-1)
            raw_store(kv_indices, offset, packed, "generate_draft_decode_kv_indices.kv_indices")
            offset += packed.numel()


@triton_on_gpu
def gather_page_table(table: Tensor, req_pool_indices: Tensor, num_pages: int, page_size: int) -> Tensor:
    """The page of every page_size-th cell of each row: int32 [B, num_pages].
    Raises IllegalAddress if a row lies outside the table's allocation."""
    column = torch.arange(0, num_pages * page_size, page_size, device=table.device)
    offsets = req_pool_indices.unsqueeze(1) * table.stride(0) + column
    return raw_gather(table, offsets, "gather_page_table.req_to_token") // page_size


@triton_on_gpu
def set_expand_page_table(cache_loc: Tensor, page_size: int, page_table: Tensor) -> None:
    """Write each branch's distinct consecutive pages into its row of ``page_table``.

    cache_loc: int64 [B·K, n] slots in ascending positions. page_table: int32 [B·K or more, width], written at
    row·stride + rank of the page, unchecked: too many pages for a row run into the next.
    Source: SGLang ``draft_decode_set_expand_metadata``, PR 27360. Raises IllegalAddress if a write leaves the table's
    allocation.
    """
    pages = cache_loc // page_size
    rank = torch.zeros_like(pages)
    rank[:, 1:] = (pages[:, 1:] != pages[:, :-1]).cumsum(dim=1)
    row = torch.arange(pages.shape[0], device=pages.device).unsqueeze(1) * page_table.stride(0)
    raw_scatter(page_table, row + rank, pages, "set_expand_page_table.page_table")

"""Page tables of draft branches for a cascade's second pass."""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.kernels.pointer import raw_scatter
from specdebug.engine.kernels.twin import triton_on_gpu


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

"""The mask of a tree batch as FlashInfer reads it: eight bits to a byte, every sequence on a byte of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.kernels.pointer import raw_block
from specdebug.engine.kernels.twin import triton_on_gpu


@triton_on_gpu
def pack_mask(
    bits: Tensor, mask_indptr: Tensor, kv_indptr: Tensor, q_len: int, packed: Tensor, packed_indptr: Tensor
) -> None:
    """Pack each sequence's q_len × kv_len bits, the first in a byte's lowest bit.

    bits: bool, flat; sequence b begins at ``mask_indptr[b]`` (int64 [B] or longer) and has q_len bits per key, of which
    ``kv_indptr`` (int32 [B + 1]) counts kv_len. packed: uint8, at least :func:`packed_size`; written. packed_indptr:
    int32 [B]; written, the byte that each sequence begins at: ``mask_indptr[b] // 8 + b`` is far enough behind the one
    before it, and needs no lengths added up. Raises IllegalAddress on a CPU if a sequence's bits lie outside ``bits``.
    """
    batch = kv_indptr.numel() - 1
    weights = 2 ** torch.arange(8)
    lengths = (kv_indptr[1:] - kv_indptr[:-1]).tolist()
    for b, (start, length) in enumerate(zip(mask_indptr[:batch].tolist(), lengths, strict=True)):
        size = q_len * length
        first, num_bytes = start // 8 + b, -(-size // 8)
        padded = torch.zeros(num_bytes * 8, dtype=torch.int64)
        padded[:size] = raw_block(bits, start, size, "pack_mask.bits")
        packed[first : first + num_bytes] = (padded.view(-1, 8) * weights).sum(dim=1)
        packed_indptr[b] = first


def packed_size(num_bits: int, batch: int) -> int:
    """The most bytes that ``num_bits`` bits of ``batch`` sequences take."""
    return num_bits // 8 + batch + 1

"""Triton twin of :mod:`specdebug.engine.kernels.pack_mask`; lengths stay on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BYTES = 256
_PARTS = 8
"""Programs per sequence, which take turns: only the device knows how many bytes there are."""


@triton.jit
def _pack_mask(bits, mask_indptr, kv_indptr, packed, packed_indptr, q_len, BYTES: tl.constexpr):
    b = tl.program_id(0)
    part = tl.program_id(1)
    start = tl.load(mask_indptr + b).to(tl.int64)
    length = tl.load(kv_indptr + b + 1).to(tl.int64) - tl.load(kv_indptr + b).to(tl.int64)
    num_bits = length * q_len
    first = start // 8 + b
    if part == 0:
        tl.store(packed_indptr + b, first.to(tl.int32))
    num_bytes = ((num_bits + 7) // 8).to(tl.int32)
    lane = tl.arange(0, 8)
    for base in range(part * BYTES, num_bytes, tl.num_programs(1) * BYTES):
        byte = base + tl.arange(0, BYTES)
        bit = byte[:, None].to(tl.int64) * 8 + lane[None, :]
        keep = tl.load(bits + start + bit, mask=bit < num_bits, other=0) != 0
        value = tl.sum(keep.to(tl.int32) << lane[None, :], axis=1)
        tl.store(packed + first + byte, value.to(tl.uint8), mask=byte < num_bytes)


def pack_mask(
    bits: Tensor, mask_indptr: Tensor, kv_indptr: Tensor, q_len: int, packed: Tensor, packed_indptr: Tensor
) -> None:
    batch = kv_indptr.numel() - 1
    _pack_mask[(batch, _PARTS)](
        bits.view(torch.uint8), mask_indptr, kv_indptr, packed, packed_indptr, q_len, BYTES=_BYTES
    )

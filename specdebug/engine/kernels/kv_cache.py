"""Writing and moving rows of a KV pool."""

from __future__ import annotations

from typing import NamedTuple

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

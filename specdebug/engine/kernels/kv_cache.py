"""Writing and moving rows of a KV pool."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class KVDestination(NamedTuple):
    """Where one layer's keys and values of a batch go: its caches k and v [N, Hkv, D], and int64 slots [n]."""

    k: Tensor
    v: Tensor
    slots: Tensor


def write_kv(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Store k, v [n, Hkv, D], of any strides, at int64 ``slots`` [n] of one layer's k_cache, v_cache [N, Hkv, D].

    Raises:
        IndexError: a slot lies outside the cache (on a CPU; a device writes where the slot points).
    """
    if k_cache.is_cuda:
        from specdebug.engine.kernels.triton import kv_cache

        kv_cache.write_kv(k_cache, v_cache, slots, k, v)
        return
    k_cache.index_copy_(0, slots, k)
    v_cache.index_copy_(0, slots, v)


def move_kv(buffers: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy buffers[:, src_loc] to buffers[:, tgt_loc] (int64 [m]); all reads finish before any write.

    buffers: [2·layers, N, Hkv, D], contiguous in its last two dimensions. Where a target is named twice, either copy
    may win.

    Raises:
        IndexError: a slot lies outside the buffers (on a CPU; a device reads and writes where the slot points).
    """
    if buffers.is_cuda:
        from specdebug.engine.kernels.triton import kv_cache

        kv_cache.move_kv(buffers, tgt_loc, src_loc)
        return
    buffers.index_copy_(1, tgt_loc, buffers.index_select(1, src_loc))

"""The KV pool of multi-head and grouped-query attention: keys and values of every KV head, in tensors of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.kernels.kv_cache import KVDestination, move_kv, write_kv
from specdebug.engine.memory.fill import FillPolicy


class MHAPool:
    """The ``KVPool`` of ``k[layer]``, ``v[layer]``: [N + P, num_kv_heads, head_dim]."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        fill: FillPolicy,
        device: torch.device | None = None,
    ) -> None:
        self.num_layers = num_layers
        self.size = num_slots + page_size
        self._fill = fill
        # one tensor, so that moving slots is one gather and one scatter whatever the number of layers
        shape = (2 * num_layers, self.size, num_kv_heads, head_dim)
        if fill.poisons:
            self._buffers = torch.empty(shape, dtype=dtype, device=device)
            for buffer in self._buffers:
                fill.paint(buffer)
            self._buffers[:, :page_size] = 0
        else:  # zeros cost no memory until they are written, painting would
            self._buffers = torch.zeros(shape, dtype=dtype, device=device)
        self._keys, self._values = self._buffers[:num_layers], self._buffers[num_layers:]
        self.k = list(self._keys)
        self.v = list(self._values)

    @property
    def device(self) -> torch.device:
        return self._buffers.device

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        write_kv(*self.destination(layer, slots), k, v)

    def destination(self, layer: int, slots: Tensor) -> KVDestination:
        if layer == 0:
            maybe_detect_oob(slots, 0, self.size, "kv_pool.write.loc")
        return KVDestination(self.k[layer], self.v[layer], slots)

    def probe_written(self, slots: Tensor) -> None:
        with grouped():  # a launch for each layer would cost a GPU more than everything else that is probed
            maybe_detect_nan(self._keys, "kv_pool.write.k", slots)
            maybe_detect_nan(self._values, "kv_pool.write.v", slots)

    def move_kv_cache(self, tgt_loc: Tensor, src_loc: Tensor) -> None:
        maybe_detect_oob(tgt_loc, 0, self.size, "move_kv_cache.tgt_loc")
        maybe_detect_oob(src_loc, 0, self.size, "move_kv_cache.src_loc")
        move_kv(self._buffers, tgt_loc, src_loc)

    def zero(self, slots: Tensor) -> None:
        self._buffers.index_fill_(1, slots, 0)

    def poison(self, slots: Tensor) -> None:
        if not self._fill.poisons:
            return
        for buffer in (*self.k, *self.v):
            content = torch.empty((slots.numel(), *buffer.shape[1:]), dtype=buffer.dtype, device=buffer.device)
            self._fill.paint(content)
            buffer[slots] = content

    def kv_buffer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.k[layer], self.v[layer]

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        return self._keys[:, slots], self._values[:, slots]

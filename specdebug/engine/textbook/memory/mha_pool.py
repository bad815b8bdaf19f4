"""The KV pool of multi-head and grouped-query attention: keys and values of every KV head, in tensors of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.kernels.kv_cache import KVDestination, write_kv
from specdebug.engine.memory.fill import FillPolicy
from specdebug.engine.textbook.memory.slot_buffers import SlotBuffers


class MHAPool(SlotBuffers):
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
        super().__init__(
            planes=2 * num_layers,
            num_layers=num_layers,
            num_slots=num_slots,
            page_size=page_size,
            row=(num_kv_heads, head_dim),
            dtype=dtype,
            fill=fill,
            device=device,
        )
        self._keys, self._values = self._buffers[:num_layers], self._buffers[num_layers:]
        self.k = list(self._keys)
        self.v = list(self._values)

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

    def kv_buffer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.k[layer], self.v[layer]

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        return self._keys[:, slots], self._values[:, slots]

"""The KV pool of multi-head and grouped-query attention: keys and values of every KV head, in tensors of their own."""

from typing import NotRequired, TypedDict, Unpack

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.device import upload
from specdebug.engine.kernels.kv_cache import KVDestination, move_kv, write_kv
from specdebug.engine.memory.arena import FillPolicy


class PoolSizes(TypedDict):
    """N and P, and what a pool is made of."""

    num_slots: int
    page_size: int
    dtype: torch.dtype
    fill: FillPolicy
    device: NotRequired[torch.device | None]


class SlotBuffers:
    """``planes`` tensors [N + P, heads, width], one or two for each layer, and those parts of ``KVPool`` that no layout
    changes. They are one tensor, so that moving slots is one gather and one scatter. ``row``: heads and width."""

    def __init__(self, planes: int, num_layers: int, row: tuple[int, int], **sizes: Unpack[PoolSizes]) -> None:
        page, dtype, device = sizes["page_size"], sizes["dtype"], sizes.get("device")
        self.num_layers = num_layers
        self.size = sizes["num_slots"] + page
        self._fill = sizes["fill"]
        shape = (planes, self.size, *row)
        if self._fill.poisons:
            self._buffers = torch.empty(shape, dtype=dtype, device=device)
            for buffer in self._buffers:
                self._fill.paint(buffer)
            self._buffers[:, :page] = 0
        else:  # zeros cost no memory until they are written, painting would
            self._buffers = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def device(self) -> torch.device:
        return self._buffers.device

    def move_kv_cache(self, tgt_loc: Tensor, src_loc: Tensor) -> None:
        maybe_detect_oob(tgt_loc, 0, self.size, "move_kv_cache.tgt_loc")
        maybe_detect_oob(src_loc, 0, self.size, "move_kv_cache.src_loc")
        move_kv(self._buffers, tgt_loc, src_loc)

    def zero(self, slots: Tensor) -> None:
        self._buffers.index_fill_(1, slots, 0)

    def poison(self, slots: Tensor) -> None:
        if not self._fill.poisons:
            return
        there = upload(slots.numpy(), self.device) if slots.device.type == "cpu" else slots
        for buffer in self._buffers:
            content = torch.empty((slots.numel(), *buffer.shape[1:]), dtype=buffer.dtype, device=buffer.device)
            self._fill.paint(content)
            buffer.index_copy_(0, there, content)  # by slots on the host, each plane would wait for a copy of them


class MHAPool(SlotBuffers):
    """The ``KVPool`` of ``k[layer]``, ``v[layer]``: [N + P, num_kv_heads, head_dim]."""

    def __init__(self, *, num_layers: int, num_kv_heads: int, head_dim: int, **sizes: Unpack[PoolSizes]) -> None:
        super().__init__(2 * num_layers, num_layers, (num_kv_heads, head_dim), **sizes)
        self._keys, self._values = self._buffers[:num_layers], self._buffers[num_layers:]
        self.k, self.v = list(self._keys), list(self._values)

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

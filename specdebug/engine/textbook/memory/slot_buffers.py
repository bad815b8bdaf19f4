"""Rows of a KV pool by slot, whatever they hold: fresh and released content, moves, zeros.

Layouts build on it. All planes of a pool, one for each layer or two, are one tensor, so that moving slots is one gather
and one scatter whatever the number of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_oob
from specdebug.engine.device import upload
from specdebug.engine.kernels.kv_cache import move_kv
from specdebug.engine.memory.fill import FillPolicy


class SlotBuffers:
    """``planes`` tensors [N + P, heads, width] in one, and those parts of ``KVPool`` that no layout changes."""

    def __init__(
        self,
        *,
        planes: int,
        num_layers: int,
        num_slots: int,
        page_size: int,
        row: tuple[int, int],
        dtype: torch.dtype,
        fill: FillPolicy,
        device: torch.device | None = None,
    ) -> None:
        """``row``: heads and width of one slot of one plane."""
        self.num_layers = num_layers
        self.size = num_slots + page_size
        self._fill = fill
        shape = (planes, self.size, *row)
        if fill.poisons:
            self._buffers = torch.empty(shape, dtype=dtype, device=device)
            for buffer in self._buffers:
                fill.paint(buffer)
            self._buffers[:, :page_size] = 0
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

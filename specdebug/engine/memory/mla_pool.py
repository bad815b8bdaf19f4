"""The KV pool of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one packed row a slot for all heads.

A row is a token's normed latent and its rotated key part, side by side. Queries are brought into the latent's space, so
that the whole row is the key of every head and its latent the value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_nan, maybe_detect_oob
from specdebug.engine.kernels.kv_cache import KVDestination
from specdebug.engine.memory.fill import FillPolicy
from specdebug.engine.textbook.memory.slot_buffers import SlotBuffers


class MLAPool(SlotBuffers):
    """The ``KVPool`` of ``rows[layer]``: [N + P, 1, row_dim], of which the first ``value_dim`` columns are values."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        page_size: int,
        row_dim: int,
        value_dim: int,
        dtype: torch.dtype,
        fill: FillPolicy,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(
            planes=num_layers,
            num_layers=num_layers,
            num_slots=num_slots,
            page_size=page_size,
            row=(1, row_dim),
            dtype=dtype,
            fill=fill,
            device=device,
        )
        self.value_dim = value_dim
        self.rows = list(self._buffers)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store rows ``k`` [n, 1, row_dim]; ``v`` is their first columns and comes with them."""
        self.destination(layer, slots).k.index_copy_(0, slots, k)

    def destination(self, layer: int, slots: Tensor) -> KVDestination:
        if layer == 0:
            maybe_detect_oob(slots, 0, self.size, "kv_pool.write.loc")
        return KVDestination(*self.kv_buffer(layer), slots)

    def probe_written(self, slots: Tensor) -> None:
        maybe_detect_nan(self._buffers, "kv_pool.write.k", slots)  # whose columns are the values, too

    def kv_buffer(self, layer: int) -> tuple[Tensor, Tensor]:
        """The rows, and the view of their first columns."""
        rows = self.rows[layer]
        return rows, rows[..., : self.value_dim]

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._buffers[:, slots]
        return rows, rows[..., : self.value_dim].clone()

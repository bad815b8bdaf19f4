"""Keys and values by slot, in the layout that a model names: ``mha`` (by head), ``mla`` (one packed latent for all
heads), or one that a package brings by an entry point of the group ``specdebug.kv_pools``, which leads to a
``MakeKVPool``.

Target and draft pools are separate and share slot ids. Only executors and kernels know what a slot's elements are.
"""

from typing import Protocol, Unpack

import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_nan, maybe_detect_oob
from specdebug.base.plugins import PluginRegistry
from specdebug.engine.kernels.kv_cache import KVDestination
from specdebug.engine.model.interface import Heads
from specdebug.engine.textbook.memory.mha_pool import MHAPool, PoolSizes, SlotBuffers


class MLAPool(SlotBuffers):
    """The ``KVPool`` of latent attention (DeepSeek-V2, arXiv 2405.04434): ``rows[layer]`` [N + P, 1, row_dim].

    A row is a token's normed latent, ``value_dim`` wide, and its rotated key part. Queries are brought into the
    latent's space, so that the row is the key of every head and its latent the value.
    """

    def __init__(self, *, num_layers: int, row_dim: int, value_dim: int, **sizes: Unpack[PoolSizes]) -> None:
        super().__init__(num_layers, num_layers, (1, row_dim), **sizes)
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


class KVPool(Protocol):
    """The keys and values that all layers of one model have stored, by slot.

    Slots 0 .. P-1 are padding: they start as zeros, and the padded rows of a graph batch write there.
    """

    size: int
    """Slots, those of the padding included."""
    num_layers: int
    """Layers that write here."""

    @property
    def device(self) -> torch.device:
        """The device whose memory holds the slots."""

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store a batch's k, v [n, heads, width] at int64 ``slots`` [n]; their widths may differ."""

    def probe_written(self, slots: Tensor) -> None:
        """Probe what a forward has written to ``slots`` (int64, any shape), all layers at once."""

    def move_kv_cache(self, tgt_loc: Tensor, src_loc: Tensor) -> None:
        """Copy every layer's KV from ``src_loc`` to ``tgt_loc`` (int64 [m]); reads finish before writes."""

    def zero(self, slots: Tensor) -> None:
        """Zero every layer's KV at ``slots``."""

    def poison(self, slots: Tensor) -> None:
        """Make released slots (int64, on any device) hold what unwritten memory holds under the fill policy."""

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of k and v at ``slots`` [n] for an oracle: each [num_layers, n, heads, width]; widths as of
        :meth:`kv_buffer`."""

    def kv_buffer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Views of one layer's k and v for an executor of this layout: each [size, heads, width]. Where a layout's
        values are the first columns of its keys, v is that view of k."""

    def destination(self, layer: int, slots: Tensor) -> KVDestination:
        """Where :meth:`write` would write, for a kernel that makes k and v and writes them itself."""


class CachedModel(Heads, Protocol):
    """A model, as far as a pool has to know it to hold its KV."""

    @property
    def num_layers(self) -> int: ...


class MakeKVPool(Protocol):
    """Makes a model's pool of ``num_slots`` slots and one page of padding, its content as ``fill`` says."""

    def __call__(self, model: CachedModel, **sizes: Unpack[PoolSizes]) -> KVPool: ...


def _make_mha_pool(model: CachedModel, **sizes: Unpack[PoolSizes]) -> MHAPool:
    return MHAPool(num_layers=model.num_layers, num_kv_heads=model.num_kv_heads, head_dim=model.head_dim, **sizes)


def _make_mla_pool(model: CachedModel, **sizes: Unpack[PoolSizes]) -> MLAPool:
    return MLAPool(num_layers=model.num_layers, row_dim=model.head_dim, value_dim=model.value_dim, **sizes)


KV_POOLS: PluginRegistry[MakeKVPool] = PluginRegistry(
    "kv_pools", "a function that makes a pool", callable, {"mha": _make_mha_pool, "mla": _make_mla_pool}
)


def kv_pool_of(layout: str) -> MakeKVPool:
    """The function that makes a layout's pools. Raises LookupError for a layout that is unknown."""
    try:
        return KV_POOLS[layout]
    except KeyError:
        raise LookupError(f"no KV pool for layout {layout!r}; there are {', '.join(sorted(KV_POOLS))}") from None

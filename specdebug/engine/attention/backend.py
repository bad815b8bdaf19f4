"""A backend binds metadata to a KV pool and to the slots that a batch writes: torch on a CPU, device kernels on CUDA.

The result attends layer by layer, and can be planned anew for the next batch of the same shape: a captured graph keeps
its attention.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from specdebug.engine.config import EngineConfig
from specdebug.engine.kernels.kv_cache import KVDestination
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import Heads, LayerAttention
from specdebug.engine.textbook.attention.executor import TorchAttention
from specdebug.engine.textbook.attention.planner import Metadata


class BoundAttention(LayerAttention, Protocol):
    """Attention of one batch over one pool."""

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata`` from now on. Under a graph it lies in the buffers it lay in when bound."""


class AttentionBackend(Protocol):
    """Makes attention for batches of one plan on one device."""

    def bind(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, *, graph: bool = False
    ) -> BoundAttention:
        """Bind a batch whose own KV goes to ``out_cache_loc`` (int64 [n]); None: it has none, and only ``attend`` is
        called. ``graph``: it is about to be captured, so metadata and locations are static buffers."""


class MakeExecutor(Protocol):
    """The function of a plan's library that makes a backend of its kernels for one model."""

    def __call__(
        self, config: EngineConfig, model: Heads, dtype: torch.dtype, device: torch.device
    ) -> tuple[AttentionBackend | None, str | None]:
        """Return the backend, or None and the reason to report; the reason is None if there is none to report."""


class DeviceAttention(ABC):
    """Attention by device kernels over one prepared batch of one pool, as ``StoredAttention`` and ``BoundAttention``.

    out_cache_loc: int64 [n], where the batch's own keys and values go; None: it has none. Shapes as
    ``interface.LayerAttention`` has them.
    """

    def __init__(self, pool: KVPool, out_cache_loc: Tensor | None) -> None:
        self._pool = pool
        self._loc = out_cache_loc

    def __call__(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [n, Hq, D], k [n, Hkv, D], v [n, Hkv, Dv] -> [n, Hq * Dv]."""
        assert self._loc is not None
        self._pool.write(layer_id, self._loc, k, v)
        return self.attend(layer_id, q)

    def destination(self, layer_id: int) -> KVDestination:
        assert self._loc is not None
        return self._pool.destination(layer_id, self._loc)

    @abstractmethod
    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        """q [n, Hq, D] -> [n, Hq * Dv], over keys and values that are written."""

    @abstractmethod
    def replan(self, metadata: Metadata) -> None: ...


class TorchBackend:
    """The reference: any plan, CPU tensors. ``scale``: of attention's scores, by default D ** -0.5."""

    def __init__(self, scale: float | None = None) -> None:
        self._scale = scale

    def bind(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, *, graph: bool = False
    ) -> BoundAttention:
        return TorchAttention(metadata, pool, out_cache_loc, self._scale)


class TritonBackend:
    """Our own kernels: any plan, CUDA tensors. ``scale``: of attention's scores, by default D ** -0.5."""

    def __init__(self, scale: float | None = None) -> None:
        self._scale = scale

    def bind(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, *, graph: bool = False
    ) -> BoundAttention:
        from specdebug.engine.gpu.triton_executor import TritonAttention  # triton comes with CUDA builds only

        return TritonAttention(metadata, pool, out_cache_loc, self._scale)

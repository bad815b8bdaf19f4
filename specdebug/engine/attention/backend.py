"""A backend executes plans: the torch reference on a CPU, device kernels on CUDA.

A backend binds metadata to a pool and to the slots a batch writes. What it returns attends layer by layer, and can be
planned anew for the next batch of the same shape, which is how a captured graph keeps its attention.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specdebug.engine.attention.executor import TorchAttention
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.config import EngineConfig
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention


class BoundAttention(LayerAttention, Protocol):
    """Attention of one batch over one pool."""

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata`` from now on. Under a graph it lies in the buffers it lay in when bound."""
        ...


class AttentionBackend(Protocol):
    """Makes attention for batches of one plan on one device."""

    def bind(self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor, *, graph: bool = False) -> BoundAttention:
        """``out_cache_loc``: int64 [n], where the batch's own KV goes. ``graph``: it is about to be captured, so
        metadata and locations are static buffers."""
        ...


class Heads(Protocol):
    """The attention geometry of a model."""

    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class MakeExecutor(Protocol):
    """A plan's library as the engine asks for it: a function that makes a backend of its kernels for one model."""

    def __call__(
        self, config: EngineConfig, model: Heads, dtype: torch.dtype, device: torch.device
    ) -> tuple[AttentionBackend | None, str | None]:
        """The backend, or None and the reason why it cannot be had, which is reported. The reason is None where
        nothing need be reported."""
        ...


class TorchBackend:
    """The reference: any plan, CPU tensors."""

    def bind(self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor, *, graph: bool = False) -> BoundAttention:
        return TorchAttention(metadata, pool, out_cache_loc)


class TritonBackend:
    """Our own kernels: any plan, CUDA tensors."""

    def bind(self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor, *, graph: bool = False) -> BoundAttention:
        from specdebug.engine.attention.triton_executor import TritonAttention  # triton comes with CUDA builds only

        return TritonAttention(metadata, pool, out_cache_loc)

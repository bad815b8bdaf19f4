"""The fa3 plan executed by flash-attn on CUDA: one call a layer, or two and a merge for a cascade.

The library reads page tables and lengths on the device and splits keys by shapes, so a captured graph attends whatever
its metadata buffers hold at replay. Some of its kernels multiply what lies behind a sequence's end in its last page by
a weight of zero: where unwritten memory is NaN (``memory.fill: nan``), only ours never read it.

As :mod:`flash_attn_library` says, tested against a stand-in for the library only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.attention.backend import DeviceAttention
from specdebug.engine.config import EngineConfig
from specdebug.engine.gpu.flash_attn_library import FlashAttnKernels, find
from specdebug.engine.kernels.merge_pair import PartialAttention, merge_pair
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import Heads
from specdebug.engine.textbook.attention.planner import CascadeMetadata, Metadata, PagedMetadata


class FlashAttnExecutor:
    """Makes attention for batches of the fa3 plan. It owns no memory: the library allocates what it needs."""

    def __init__(self, kernels: FlashAttnKernels) -> None:
        self._kernels = kernels

    def bind(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, *, graph: bool = False
    ) -> FlashAttnAttention:
        return FlashAttnAttention(self._kernels, metadata, pool, out_cache_loc)


def make_flash_attn(
    config: EngineConfig, model: Heads, dtype: torch.dtype, device: torch.device
) -> tuple[FlashAttnExecutor | None, str | None]:
    """Make the executor for a model, or say why the installed flash-attn cannot execute its plan.

    Without flash-attn our own kernels are the plan's usual executor, and there is no reason to report.
    """
    topk = 1 if config.speculative is None else config.speculative.eagle_topk
    kernels, reason = find(dtype, model.head_dim, page_size=config.page_size, topk=topk, device=device)
    if kernels is not None and model.kv_layout == "mla":
        return None, f"{kernels.name} is called for keys and values by head, and this model stores latents"
    return (None, reason) if kernels is None else (FlashAttnExecutor(kernels), None)


class FlashAttnAttention(DeviceAttention):
    """Attention by page tables, in one pass or a cascade."""

    def __init__(
        self, kernels: FlashAttnKernels, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None
    ) -> None:
        super().__init__(pool, out_cache_loc)
        self._kernels = kernels
        self.replan(metadata)

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata``, of the same kind and shape, from now on."""
        assert isinstance(metadata, (PagedMetadata, CascadeMetadata))
        self._metadata = metadata

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        if q.shape[0] == 0:
            return q.new_empty(0, q.shape[1] * q.shape[2])
        if isinstance(self._metadata, CascadeMetadata):
            parts = [self._part(layer_id, q, batch) for batch in (self._metadata.prefix, self._metadata.expand)]
            return merge_pair(*parts).flatten(1)
        batch = self._metadata
        causal = batch.causal or batch.q_len is None
        return self._kernels.attend(q, *self._pages(layer_id, batch), batch, causal=causal).flatten(1)

    def _part(self, layer_id: int, q: Tensor, batch: PagedMetadata) -> PartialAttention:
        return PartialAttention(*self._kernels.attend_with_lse(q, *self._pages(layer_id, batch), batch))

    def _pages(self, layer_id: int, batch: PagedMetadata) -> tuple[Tensor, Tensor]:
        """One layer's keys and values as pages [pages, P, Hkv, D] of the size that the batch's table counts in."""
        k, v = self._pool.kv_buffer(layer_id)
        shape = (-1, batch.page_size, *k.shape[1:])
        return k.view(shape), v.view(shape)

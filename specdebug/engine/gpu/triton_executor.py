"""The Triton executor: every plan through our own paged-attention kernel, without a look at the host.

Launches follow from shapes alone, so what is captured in a graph attends whatever its metadata buffers hold at replay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdebug.engine.attention.backend import DeviceAttention
from specdebug.engine.kernels.triton.merging import merge_splits
from specdebug.engine.kernels.triton.paged_attention import (
    MAX_MERGED_IN_PLACE,
    Merge,
    Sequences,
    attend,
    choose_splits,
    count_tiles,
)
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.textbook.attention.planner import CascadeMetadata, Metadata, PagedMetadata, RaggedMetadata


class TritonAttention(DeviceAttention):
    """Attention by metadata of any plan, whose tensors the kernels read at every call. ``scale``: of the scores, by
    default D ** -0.5."""

    def __init__(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, scale: float | None = None
    ) -> None:
        super().__init__(pool, out_cache_loc)
        self._scale = scale
        self._splits: list[int] = []
        self._partial: tuple[Tensor, Tensor] | None = None
        self._tickets: Tensor | None = None
        self.replan(metadata)

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata``, of the same kind and shape, from now on."""
        parts = (metadata.prefix, metadata.expand) if isinstance(metadata, CascadeMetadata) else (metadata,)
        self._passes = [_sequences(part) for part in parts]

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        keys, values = self._pool.kv_buffer(layer_id)
        out = torch.empty((*q.shape[:2], values.shape[2]), dtype=q.dtype, device=q.device)
        if not self._splits:
            self._size(q, keys, values.shape[2])
        if self._partial is None:
            attend(q, keys, values, self._passes[0], out, scale=self._scale)
        else:
            partial, lse = self._partial
            assert partial.shape[0] == q.shape[0]
            first = 0
            in_place = None if self._tickets is None else Merge(out, self._tickets)
            for batch, splits in zip(self._passes, self._splits, strict=True):
                merge = in_place if batch is self._passes[-1] else None
                place = {"first_split": first, "splits": splits}
                attend(q, keys, values, batch, partial, lse, **place, merge=merge, scale=self._scale)
                first += splits
            if in_place is None:
                merge_splits(partial, lse, out)
        return out.flatten(1)

    def _size(self, q: Tensor, keys: Tensor, value_dim: int) -> None:
        """Choose parts per pass, and make room for them that all layers share; the last pass merges them in place where
        one program can."""
        self._splits = [choose_splits(batch, q, keys) for batch in self._passes]
        parts = sum(self._splits)
        if parts > 1:
            partial = torch.empty((*q.shape[:2], parts, value_dim), dtype=torch.float32, device=q.device)
            lse = torch.empty((*q.shape[:2], parts), dtype=torch.float32, device=q.device)
            self._partial = partial, lse
            last = self._passes[-1]
            if parts <= MAX_MERGED_IN_PLACE and last.q_len is not None:
                self._tickets = torch.zeros(count_tiles(last, q, keys), dtype=torch.int32, device=q.device)


def _sequences(metadata: RaggedMetadata | PagedMetadata) -> Sequences:
    q_len, causal = metadata.q_len, metadata.causal or metadata.q_len is None
    if isinstance(metadata, PagedMetadata):
        pages, lengths = metadata.page_table, metadata.cache_seqlens
        return Sequences(pages, lengths, metadata.page_size, q_len, qo_indptr=metadata.cu_seqlens_q, causal=causal)
    mask = None if q_len is None else metadata.custom_mask
    return Sequences(
        metadata.kv_indices,
        metadata.kv_indptr,
        0,
        q_len,
        qo_indptr=metadata.qo_indptr,
        causal=causal,
        mask=None if mask is None else mask.view(torch.uint8),
        mask_indptr=None if mask is None else metadata.mask_indptr,
        num_splits=metadata.num_kv_splits,
    )

"""Metadata is all that attention kernels are handed: ragged index lists or page tables, as upstream.

B counts sequences (for drafting: one per branch), each with its own queries. Nothing here knows requests or trees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class RaggedMetadata:
    """FlashInfer and Triton: sequence ``b`` attends slots ``kv_indices[kv_indptr[b] : kv_indptr[b + 1]]``.

    kv_indptr: int32 [B + 1]. kv_indices: int32 (FlashInfer) or int64 (Triton), 1-D, kv_indptr[-1] or longer.
    qo_indptr: int32 [B + 1], rows of q; ``q_len`` is set when all sequences have that many queries.
    causal: without a custom mask, query i of n sees the first kv_len - n + i + 1 keys; always so for prefills
    (``q_len`` None).
    custom_mask: bool, flat; sequence b holds q_len × kv_len_b bits starting at ``mask_indptr[b]`` (int64).
    num_kv_splits: int32 [B], Triton's split-KV decode: how many partial passes are merged by log-sum-exp.
    kv_lens_host, q_lens_host: keys and queries per sequence as the host knows them, padding rows included, for
    libraries that schedule on the host. What a kernel attends is what the device tensors say.
    kv_lens_exact: ``kv_lens_host`` are the lengths; otherwise they may be bounds on them, as of a step begun ahead.
    """

    kv_indptr: Tensor
    kv_indices: Tensor
    qo_indptr: Tensor
    q_len: int | None
    causal: bool = True
    custom_mask: Tensor | None = None
    mask_indptr: Tensor | None = None
    num_kv_splits: Tensor | None = None
    kv_lens_host: tuple[int, ...] | None = None
    kv_lens_exact: bool = False
    q_lens_host: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PagedMetadata:
    """FlashAttention-3: sequence ``b`` attends the first ``cache_seqlens[b]`` slots of its pages.

    page_table: int32 [B, W] ids of pages of ``page_size`` slots (1: the table holds slots).
    cache_seqlens: int32 [B]. cu_seqlens_q: int32 [B + 1], rows of q. q_len, causal: as above.
    """

    page_table: Tensor
    cache_seqlens: Tensor
    cu_seqlens_q: Tensor
    q_len: int | None
    page_size: int
    causal: bool = True


@dataclass(frozen=True)
class CascadeMetadata:
    """Two passes over disjoint keys merged by log-sum-exp: a shared prefix, then each query's own branch."""

    prefix: PagedMetadata
    expand: PagedMetadata


Metadata = RaggedMetadata | PagedMetadata | CascadeMetadata


def with_host_lens(metadata: Metadata, kv_lens: tuple[int, ...]) -> Metadata:
    """Add what the host has come to know of the keys per sequence; page tables have no place for it."""
    return replace(metadata, kv_lens_host=kv_lens) if isinstance(metadata, RaggedMetadata) else metadata

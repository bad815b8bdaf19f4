"""What a batch is planned from, the metadata that a plan is, and the planner interface.

Symbols: B sequences (for drafting: one per branch), L committed length, K topk, S num_steps, T tree nodes, P page size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from specdebug.engine.config import EngineConfig
from specdebug.engine.errors import PlanAssertion
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.textbook.memory.req_to_token import ReqToToken


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


class Workspace(Protocol):
    """Memory for metadata, by name: fresh for an eager batch, static for a graph."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Give a buffer of ``shape``, or the larger static one declared under ``name``; content undefined."""


@dataclass(frozen=True)
class SequenceLayout:
    """A batch of sequences that continue their rows.

    req_pool_indices, seq_lens: int64 [B] (rows, L). seq_lens_cpu: L as the host knows it, padding rows included, or
    upper bounds, whose sum exceeds that of the lengths by ``slack`` at most.
    """

    req_pool_indices: Tensor
    seq_lens: Tensor
    seq_lens_cpu: tuple[int, ...]
    slack: int = 0

    def longer(self, tokens: int) -> SequenceLayout:
        """The batch with ``tokens`` more keys per sequence."""
        lens_cpu = tuple(length + tokens for length in self.seq_lens_cpu)
        return replace(self, seq_lens=self.seq_lens + tokens, seq_lens_cpu=lens_cpu)


@dataclass(frozen=True)
class ExtendLayout:
    """A batch of prompt chunks: int64 [B] each, and the lengths again as the host knows them."""

    req_pool_indices: Tensor
    prefix_lens: Tensor
    extend_lens: Tensor
    prefix_lens_cpu: tuple[int, ...]
    extend_lens_cpu: tuple[int, ...]

    def sequences(self) -> SequenceLayout:
        """Rows and keys of each sequence, its new ones included."""
        lens_cpu = tuple(a + b for a, b in zip(self.prefix_lens_cpu, self.extend_lens_cpu, strict=True))
        return SequenceLayout(self.req_pool_indices, self.prefix_lens + self.extend_lens, lens_cpu)


@dataclass(frozen=True)
class DraftLayout:
    """A batch of draft decodes.

    req_pool_indices, seq_lens: int64 [B] (rows, L). positions: int64 [B * K], L per branch, 0 on padding.
    out_cache_loc: int64 [B * K, S], slot of draft step j of each branch. seq_lens_cpu: L, 0 on padding.
    """

    req_pool_indices: Tensor
    seq_lens: Tensor
    positions: Tensor
    out_cache_loc: Tensor
    seq_lens_cpu: tuple[int, ...]


class AttentionPlanner(ABC):
    """Builds metadata for one engine configuration, and declares its static buffers; stateless between calls. Lengths
    come twice, on the device and as the host knows them (``*_cpu``), so that sizing buffers never waits for the device.
    """

    def __init__(self, config: EngineConfig, req_to_token: ReqToToken) -> None:
        self.req_to_token = req_to_token
        self.page_size = config.page_size
        self.context_length = config.context_length
        self.num_slots = config.usable_slots
        spec = config.speculative
        self.topk, self.num_steps, self.tree_size = (
            (spec.eagle_topk, spec.num_steps, spec.tree_size) if spec else (1, 1, 1)
        )
        self._forward_number = torch.arange(1, self.num_steps + 1, device=req_to_token.table.device).unsqueeze(1)

    @property
    def max_kv_len(self) -> int:
        """The most keys that one sequence of a verify or draft batch can have."""
        return self.context_length + max(self.tree_size, self.num_steps)

    @abstractmethod
    def extend(self, batch: ExtendLayout, workspace: Workspace) -> Metadata:
        """Plan a prefill: ``extend_lens[b]`` causal queries of sequence b after ``prefix_lens[b]`` positions."""

    @abstractmethod
    def extend_uniform(self, batch: SequenceLayout, q_len: int, workspace: Workspace) -> Metadata:
        """Plan ``q_len`` causal queries per sequence, at positions L .. L + q_len - 1 (decode, draft extend)."""

    @abstractmethod
    def verify(self, batch: SequenceLayout, tree_mask: Tensor, workspace: Workspace) -> Metadata:
        """Plan T tree nodes per sequence after L; ``tree_mask`` bool [B, T, T], ancestors and self."""

    @abstractmethod
    def draft_decode(self, batch: DraftLayout, workspace: Workspace) -> list[Metadata]:
        """Plan the S - 1 draft forwards, of which number i sees L positions and its branch's i + 1 slots."""

    @abstractmethod
    def declare_extend(self, layout: ArenaLayout, max_bs: int, q_len: int) -> None:
        """Declare the static buffers of :meth:`extend_uniform` for up to ``max_bs`` sequences."""

    @abstractmethod
    def declare_verify(self, layout: ArenaLayout, max_bs: int) -> None:
        """Declare those of :meth:`verify`."""

    @abstractmethod
    def declare_draft(self, layout: ArenaLayout, max_bs: int) -> None:
        """Declare those of :meth:`draft_decode`."""


def assert_fits(needed: int, capacity: int, site: str, what: str) -> None:
    """Raise :class:`PlanAssertion` when a buffer is too small; host-side, always on."""
    if needed > capacity:
        raise PlanAssertion(site, f"{what}: needs {needed}, the buffer holds {capacity}")


def indptr(lengths: Tensor, out: Tensor) -> Tensor:
    """Write 0 and the running sums of int ``lengths`` [B] to int32 ``out`` (B + 1 or longer); return [B + 1]."""
    filled = out[: lengths.numel() + 1]
    filled[:1].zero_()  # assigning a number to a GPU tensor waits for its copy
    torch.cumsum(lengths, 0, out=filled[1:])
    return filled


@lru_cache(maxsize=256)
def query_indptr(batch: int, q_len: int, device: torch.device) -> Tensor:
    """0, q_len, 2·q_len, ... as int32 [B + 1]; made once per shape and never written."""
    return torch.arange(0, batch * q_len + 1, q_len, dtype=torch.int32, device=device)

"""FlashInfer's plans executed by FlashInfer on CUDA: its paged decode and prefill wrappers over pages of one slot, and
its kernels for latent attention.

FlashInfer schedules a batch on the host (``plan``) from the lengths that the host knows, so that nothing waits for the
device; its kernels attend what the device's metadata says. With one query per sequence the host may know of more keys
than there are. With several both must agree: partial results are laid out by the device's length and merged by the
host's. One query per sequence runs on tensor cores too: the other decode kernel does not end when the schedule is
longer than the sequence. The kernels for latents take keys from the host's schedule alone, and know no masks: verify
and draft forwards run on our Triton kernels there. Everything runs on one stream: attentions share scratch memory.
"""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from specdebug.engine.attention.backend import AttentionBackend, BoundAttention, DeviceAttention, TritonBackend
from specdebug.engine.config import EngineConfig
from specdebug.engine.errors import FlashInferError
from specdebug.engine.gpu.flashinfer_library import (
    LATENT,
    latent_kernels,
    load,
    paged_kernels,
    supports,
    supports_latents,
)
from specdebug.engine.kernels.trees import pack_mask, packed_size
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import Heads
from specdebug.engine.textbook.attention.planner import Metadata, RaggedMetadata


@dataclass(frozen=True)
class Schedule:
    """A batch for FlashInfer's planner: int32 CPU tensors [B + 1], [B + 1] and [B], and its query rows."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_lens: Tensor
    rows: int

    @property
    def batch(self) -> int:
        return self.kv_lens.numel()


def schedule_of(metadata: RaggedMetadata) -> Schedule:
    """The schedule's input for a batch."""
    kv_lens = _lengths(metadata.kv_lens_host, metadata.kv_indptr)
    if metadata.q_len is None:
        q_lens = _lengths(metadata.q_lens_host, metadata.qo_indptr)
    else:
        q_lens = (metadata.q_len,) * len(kv_lens)
    return Schedule(_indptr(q_lens), _indptr(kv_lens), torch.tensor(kv_lens, dtype=torch.int32), sum(q_lens))


def _lengths(known: tuple[int, ...] | None, indptr: Tensor) -> tuple[int, ...]:
    """The lengths that the host knows, else those read off the device, which is waited for."""
    return tuple(indptr.diff().tolist()) if known is None else known


def _indptr(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


class ScheduleSpace:
    """The memory of a schedule on the device, and two host buffers for its asynchronous copy there.

    The buffers take turns: the copy of the last schedule may still wait for its place in the stream.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.on_device = torch.empty(size, dtype=torch.uint8, device=device)
        asynchronous = device.type == "cuda"
        self._staging = [torch.empty(size, dtype=torch.uint8, pin_memory=asynchronous) for _ in range(2)]
        events: Any = torch.cuda.Event
        self._copied = [events() for _ in range(2)] if asynchronous else None
        self._turn = 0

    @contextmanager
    def staging(self) -> Iterator[Tensor]:
        """Give a free host buffer; its copy must be enqueued when the block ends."""
        self._turn ^= 1
        copied = None if self._copied is None else self._copied[self._turn]
        if copied is not None and not copied.query():
            copied.synchronize()
        yield self._staging[self._turn]
        if copied is not None:
            copied.record()


class ScheduleSpaces:
    """Spaces of any size on one device, of which eager batches leave theirs to the next."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: dict[int, list[ScheduleSpace]] = {}

    def lend(self, attention: object, size: int, *, graph: bool) -> ScheduleSpace:
        """Lend ``size`` bytes to an attention for as long as it lives; under a ``graph`` no other ever has them."""
        spare = self._spare.setdefault(size, [])
        space = spare.pop() if spare and not graph else ScheduleSpace(size, self._device)
        if not graph:  # the next batch may have it: kernels that are launched already come first in the stream
            weakref.finalize(attention, spare.append, space).atexit = False
        return space


_SCRATCH_BYTES = 128 << 20  # what FlashInfer recommends for partial results
_BLOCKS_PER_SM = 2  # that its scheduler counts on
_SMALLEST_SCHEDULE = 64 << 10


class FlashInferExecutor:
    """Makes attention for batches of one model on one device, and owns the memory they share.

    Compiles FlashInfer's kernels if need be, which takes half a minute and is reported. ``supports`` must have allowed
    ``dtype`` and ``head_dim``. Raises FlashInferError if FlashInfer is missing, of another version, or cannot compile.
    """

    def __init__(
        self, *, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.library = load()
        self.kernels = paged_kernels(dtype, head_dim)
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.dtype = dtype
        self.device = device
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
        self._blocks = _BLOCKS_PER_SM * processors // num_kv_heads
        self._scratch = torch.zeros(_SCRATCH_BYTES, dtype=torch.uint8, device=device)
        self._spaces = ScheduleSpaces(device)

    def bind(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, *, graph: bool = False
    ) -> FlashInferAttention:
        """Plan attention of one batch; not to be called in a capture."""
        assert isinstance(metadata, RaggedMetadata)
        return FlashInferAttention(self, metadata, pool, out_cache_loc, graph=graph)

    def lend(self, attention: FlashInferAttention, schedule: Schedule, *, graph: bool) -> tuple[Tensor, ScheduleSpace]:
        """Lend an attention scratch and schedule space for any batch of this shape.

        FlashInfer cuts a batch into tiles of up to 128 query rows (a group's heads are rows of one kv head) and, to
        fill the device, keys into as many pieces as ``_blocks``. Every piece has a partial result if keys were cut, as
        under a graph they always count. A captured graph keeps the scratch it was given.
        """
        group = self.num_heads // self.num_kv_heads
        longest = (schedule.rows - schedule.batch + 1) * group
        tile = 128 if longest > 64 or not graph else 64 if longest > 16 else 16
        pieces = self._blocks
        if graph:
            pieces = max(pieces, -(-schedule.rows * group // tile) + schedule.batch - 1)
        needed = self.num_heads * pieces * tile * (self.head_dim + 1) * 4 + 64
        if needed > self._scratch.numel():
            self._scratch = torch.zeros(needed, dtype=torch.uint8, device=self.device)
        pieces = max(pieces, schedule.rows * group // 16 + schedule.batch)
        needed = 16 * pieces + 4 * (schedule.rows + schedule.batch) + 1024
        size = max(1 << (needed - 1).bit_length(), _SMALLEST_SCHEDULE)
        return self._scratch, self._spaces.lend(attention, size, graph=graph)


def make_flashinfer(
    config: EngineConfig, model: Heads, dtype: torch.dtype, device: torch.device
) -> tuple[AttentionBackend | None, str | None]:
    """Make the executor for a model, or say why FlashInfer cannot execute its plan here.
    Raises FlashInferError if FlashInfer is installed, and cannot be used."""
    latents = model.kv_layout == "mla"
    reason = supports_latents(dtype, model.value_dim, model.rotary_dim) if latents else supports(dtype, model.head_dim)
    if reason is None and importlib.util.find_spec("flashinfer") is None:
        reason = "FlashInfer is not installed"
    if reason is not None:
        return None, reason
    if latents:
        return FlashInferMLAExecutor(model, dtype, device), None
    heads, kv_heads, head_dim = model.num_heads, model.num_kv_heads, model.head_dim
    executor = FlashInferExecutor(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=device)
    return executor, None


class FlashInferAttention(DeviceAttention):
    """Attention by a schedule for packed lists."""

    def __init__(
        self,
        executor: FlashInferExecutor,
        metadata: RaggedMetadata,
        pool: KVPool,
        out_cache_loc: Tensor | None,
        *,
        graph: bool,
    ) -> None:
        super().__init__(pool, out_cache_loc)
        self._executor = executor
        self._graph = graph
        schedule = schedule_of(metadata)
        self._scratch, self._space = executor.lend(self, schedule, graph=graph)
        self._packed: tuple[Tensor, Tensor] | None = None
        if metadata.custom_mask is not None:
            size = packed_size(metadata.custom_mask.numel(), schedule.batch)
            self._packed = (
                torch.empty(size, dtype=torch.uint8, device=executor.device),
                torch.empty(schedule.batch, dtype=torch.int32, device=executor.device),
            )
        self._wrapper = self._make_wrapper(metadata, schedule)
        self._plan(metadata, schedule)

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata``, of the same shape as at bind. Under a graph it lies in the same buffers, which the
        captured kernels read, so that only the schedule is new."""
        assert isinstance(metadata, RaggedMetadata)
        schedule = schedule_of(metadata)
        if self._graph:
            self._schedule_again(metadata, schedule)
            self._pack_mask(metadata)
        else:
            self._plan(metadata, schedule)

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        k, v = self._pool.kv_buffer(layer_id)
        out = q.new_empty(q.shape)
        self._wrapper.run(q, (k.unsqueeze(1), v.unsqueeze(1)), out=out)
        return out.view(q.shape[0], -1)

    def _make_wrapper(self, metadata: RaggedMetadata, schedule: Schedule) -> Any:
        library, device = self._executor.library, self._executor.device
        buffers: dict[str, Tensor] = {}
        if self._graph:
            # Offsets are copied here from the host's schedule; _plan then puts the device's own in their place.
            offsets = torch.empty(2, schedule.batch + 1, dtype=torch.int32, device=device)
            ones = torch.ones(schedule.batch, dtype=torch.int32, device=device)
            if metadata.q_len == 1:
                names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
            else:
                names = ("paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
                buffers["qo_indptr_buf"] = offsets[1]
            buffers.update(zip(names, (offsets[0], metadata.kv_indices, ones), strict=True))
        options = {"kv_layout": "NHD", "use_cuda_graph": self._graph, "backend": "fa2", **buffers}
        if metadata.q_len == 1:
            wrapper = library.BatchDecodeWithPagedKVCacheWrapper(self._scratch, use_tensor_cores=True, **options)
        else:
            wrapper = library.BatchPrefillWithPagedKVCacheWrapper(self._scratch, **options)
        wrapper.reset_workspace_buffer(self._scratch, self._space.on_device)
        return wrapper

    def _plan(self, metadata: RaggedMetadata, schedule: Schedule) -> None:
        """Plan from the host's lengths, then have the kernels read the device's."""
        owner, wrapper = self._executor, self._wrapper
        heads = (owner.num_heads, owner.num_kv_heads, owner.head_dim, 1)
        last_page_lens = torch.ones(schedule.batch, dtype=torch.int32)  # a page of one slot is always full
        pages = (schedule.kv_indptr, metadata.kv_indices, last_page_lens)
        types = {"q_data_type": owner.dtype, "kv_data_type": owner.dtype}
        with self._space.staging() as staging:
            wrapper._pin_memory_int_workspace_buffer = staging
            if metadata.q_len == 1:
                wrapper.plan(*pages, *heads, **types)
            else:
                wrapper.plan(schedule.qo_indptr, *pages, *heads, causal=metadata.causal, **types)
        wrapper._paged_kv_indptr_buf = metadata.kv_indptr
        if metadata.q_len != 1:
            wrapper._qo_indptr_buf = metadata.qo_indptr
        if self._packed is not None:
            wrapper._custom_mask_buf, wrapper._mask_indptr_buf = self._packed
        self._pack_mask(metadata)

    def _schedule_again(self, metadata: RaggedMetadata, schedule: Schedule) -> None:
        """Do the part of ``plan`` that a captured graph needs; its buffers are where they were.

        The result is what it was at bind, because under a graph it depends on shapes only.
        """
        owner = self._executor
        lists = (schedule.qo_indptr, schedule.kv_indptr, schedule.kv_lens, schedule.rows, schedule.batch)
        heads = (owner.num_heads, owner.num_kv_heads)
        shape = (1, True, owner.head_dim, owner.head_dim)  # slots of a page; for a graph
        causal = metadata.causal and metadata.q_len != 1
        # no sliding window; keys are cut as the planner sees fit, and may be cut; no blocks are set aside for others
        rest = (-1, -1, False, 0)
        with self._space.staging() as staging:
            spaces = (self._scratch, self._space.on_device, staging)
            owner.kernels.plan(*spaces, *lists, *heads, *shape, causal, *rest)

    def _pack_mask(self, metadata: RaggedMetadata) -> None:
        if self._packed is None:
            return
        assert metadata.custom_mask is not None
        assert metadata.mask_indptr is not None
        assert metadata.q_len is not None
        pack_mask(metadata.custom_mask, metadata.mask_indptr, metadata.kv_indptr, metadata.q_len, *self._packed)


_SCHEDULE_BYTES = 1 << 20
"""More than its fixed layout takes: nine lists of 16,384 pieces, and five of one entry for each processor."""

_NO_MASK, _CAUSAL = 0, 1  # FlashInfer's codes


class FlashInferMLAExecutor:
    """Makes attention for batches of one model on one device, and owns the memory they share.

    Compiles FlashInfer's kernels if need be, which is reported. ``supports_latents`` must have allowed ``dtype`` and
    the model's sizes. Raises FlashInferError if FlashInfer is missing, of another version, or cannot compile.
    """

    def __init__(self, model: Heads, dtype: torch.dtype, device: torch.device) -> None:
        self.kernels = latent_kernels(dtype, device)
        self.num_heads = model.num_heads
        self.scale = model.softmax_scale
        self.scratch = torch.zeros(_SCRATCH_BYTES, dtype=torch.uint8, device=device)
        self._spaces = ScheduleSpaces(device)
        self._otherwise = TritonBackend(model.softmax_scale)

    def bind(
        self, metadata: Metadata, pool: KVPool, out_cache_loc: Tensor | None, *, graph: bool = False
    ) -> BoundAttention:
        """Plan attention of one batch; not to be called in a capture."""
        if not _knows_all(metadata):
            return self._otherwise.bind(metadata, pool, out_cache_loc, graph=graph)
        return FlashInferMLAAttention(self, metadata, pool, out_cache_loc, graph=graph)

    def lend(self, attention: object, *, graph: bool) -> ScheduleSpace:
        """Lend an attention the memory of a schedule."""
        return self._spaces.lend(attention, _SCHEDULE_BYTES, graph=graph)


def _knows_all(metadata: Metadata) -> bool:
    """The host knows the batch's lengths, and it has no mask."""
    return isinstance(metadata, RaggedMetadata) and metadata.kv_lens_exact and metadata.custom_mask is None


class FlashInferMLAAttention(DeviceAttention):
    """Attention by a schedule for packed lists of slots, whose rows are latents and key parts."""

    def __init__(
        self,
        executor: FlashInferMLAExecutor,
        metadata: Metadata,
        pool: KVPool,
        out_cache_loc: Tensor | None,
        *,
        graph: bool,
    ) -> None:
        super().__init__(pool, out_cache_loc)
        self._executor = executor
        self._space = executor.lend(self, graph=graph)
        self.replan(metadata)

    def replan(self, metadata: Metadata) -> None:
        """Attend by ``metadata``, of the same shape as at bind. Under a graph its slots lie in the same buffer.
        Raises FlashInferError if the host does not know its lengths."""
        if not _knows_all(metadata):
            raise FlashInferError("FlashInfer's latent attention was planned for lengths that the host knows")
        assert isinstance(metadata, RaggedMetadata)
        owner, schedule = self._executor, schedule_of(metadata)
        self._slots = metadata.kv_indices
        self._mask = _CAUSAL if metadata.causal and metadata.q_len != 1 else _NO_MASK
        lists = (schedule.qo_indptr, schedule.kv_indptr, schedule.kv_lens)
        with self._space.staging() as staging:
            spaces = (owner.scratch, self._space.on_device, staging)
            causal = self._mask == _CAUSAL
            self._plan: Any = owner.kernels.plan(*spaces, *lists, owner.num_heads, LATENT[0], causal)

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        owner, latent = self._executor, LATENT[0]
        rows, _ = self._pool.kv_buffer(layer_id)  # [N, 1, C + R]: pages of one slot
        out = q.new_empty(*q.shape[:2], latent)
        halves = (q[..., :latent], q[..., latent:], rows[..., :latent], rows[..., latent:])
        how = (self._mask, owner.num_heads, 1, owner.scale)  # slots of a page
        # no log-sum-exp, to no base
        planned = (owner.scratch, self._space.on_device, self._plan)
        owner.kernels.run(*planned, *halves, self._slots, out, None, *how, False)
        return out.flatten(1)

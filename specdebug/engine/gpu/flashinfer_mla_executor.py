"""FlashInfer's plan for latent attention, executed by FlashInfer's kernels for it where the host knows every length.

These kernels take a sequence's keys from the host's schedule alone, and know no masks. A step that is begun ahead has
bounds on its lengths, and a tree has a mask: verify and draft forwards run on our Triton kernels, while prefills, plain
decodes and draft extends run here. The schedule has one layout for all batches, so a captured graph is planned anew
where it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdebug.engine.attention.backend import BoundAttention, DeviceAttention, TritonBackend
from specdebug.engine.errors import FlashInferError
from specdebug.engine.gpu.flashinfer_library import LATENT, latent_kernels
from specdebug.engine.gpu.flashinfer_schedule import ScheduleSpace, ScheduleSpaces, schedule_of
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import Heads
from specdebug.engine.textbook.attention.planner import Metadata, RaggedMetadata

_SCRATCH_BYTES = 128 << 20  # what FlashInfer recommends for partial results
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
        with self._space.staging() as staging:
            self._plan: Any = owner.kernels.plan(
                owner.scratch,
                self._space.on_device,
                staging,
                schedule.qo_indptr,
                schedule.kv_indptr,
                schedule.kv_lens,
                owner.num_heads,
                LATENT[0],
                self._mask == _CAUSAL,
            )

    def attend(self, layer_id: int, q: Tensor) -> Tensor:
        latent = LATENT[0]
        rows, _ = self._pool.kv_buffer(layer_id)  # [N, 1, C + R]: pages of one slot
        out = q.new_empty(*q.shape[:2], latent)
        self._executor.kernels.run(
            self._executor.scratch,
            self._space.on_device,
            self._plan,
            q[..., :latent],
            q[..., latent:],
            rows[..., :latent],
            rows[..., latent:],
            self._slots,
            out,
            None,  # no log-sum-exp
            self._mask,
            self._executor.num_heads,
            1,  # slots per page
            self._executor.scale,
            False,  # of the log-sum-exp that is not asked for
        )
        return out.flatten(1)

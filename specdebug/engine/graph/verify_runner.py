"""Target verify as a graph: T tokens per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata, with_host_lens
from specdebug.engine.attention.planner import AttentionPlanner, SequenceLayout
from specdebug.engine.config import CudaGraphConfig
from specdebug.engine.graph.runner import GraphRunner, Planned, StaticBuffers, padded_lens, padded_size
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.memory.fill import FillPolicy
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.speculative.verify import VerifyForward, VerifyInputs, VerifyOutputs


class VerifyGraphRunner(GraphRunner[VerifyInputs]):
    """Replays :class:`VerifyForward` at captured batch sizes. Padded rows are empty requests on slot 0.

    In two parts, because :meth:`prepare` needs to know less than :meth:`launch` and can come earlier.
    """

    def __init__(
        self,
        config: CudaGraphConfig,
        forward: VerifyForward,
        planner: AttentionPlanner,
        attention: AttentionBackend,
        *,
        tree_size: int,
        dtype: torch.dtype,
        guards: bool,
        fill: FillPolicy,
        device: torch.device,
    ) -> None:
        self._callable = forward
        self._planner = planner
        self._tree_size = tree_size
        max_bs = config.batch_sizes[-1]
        tokens = max_bs * tree_size
        metadata = ArenaLayout(guards=guards)
        planner.declare_verify(metadata, max_bs)
        buffers = StaticBuffers(
            inputs=[
                ("verify.input_ids", (tokens,), torch.int64),
                ("verify.positions", (tokens,), torch.int64),
                ("verify.out_cache_loc", (tokens,), torch.int64),
                ("verify.tree_mask", (max_bs, tree_size, tree_size), torch.bool),
                ("verify.req_pool_indices", (max_bs,), torch.int64),
                ("verify.seq_lens", (max_bs,), torch.int64),
            ],
            metadata=metadata,
            outputs=[
                ("verify.logits", (tokens, forward.model.config.vocab_size), dtype),
                ("verify.features", (tokens, forward.feature_size), dtype),
            ],
            fill=fill,
            device=device,
        )
        super().__init__(config.batch_sizes, buffers, attention, forward.pool)

    def prepare(self, inputs: VerifyInputs, seq_lens_cpu: tuple[int, ...], *, slack: int = 0) -> Planned[VerifyInputs]:
        """Load static inputs and plan attention for the next launch, at the padded size.

        ``seq_lens_cpu`` may be too long, by ``slack`` in all at most.
        """
        raw_bs, buffers = inputs.seq_lens.numel(), self.buffers
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        if bs != raw_bs:
            buffers["verify.input_ids"].zero_()
            buffers["verify.positions"].zero_()
            buffers["verify.out_cache_loc"].zero_()
            buffers["verify.tree_mask"].fill_(True)
            buffers["verify.req_pool_indices"].zero_()
            buffers["verify.seq_lens"].zero_()
        buffers.load(
            {
                "verify.input_ids": inputs.input_ids,
                "verify.positions": inputs.positions,
                "verify.out_cache_loc": inputs.out_cache_loc,
                "verify.tree_mask": inputs.mask,
                "verify.req_pool_indices": inputs.req_pool_indices,
                "verify.seq_lens": inputs.seq_lens,
            }
        )
        padded = self._padded(bs)
        return self._planned(bs, padded, self._plan(padded, padded_lens(seq_lens_cpu, bs), slack))

    def launch(self, planned: Planned[VerifyInputs], seq_lens_cpu: tuple[int, ...]) -> VerifyOutputs:
        """Run what was prepared last; the result views static outputs, valid until the next launch.

        ``seq_lens_cpu`` are the lengths themselves: a library that schedules on the host gets several queries of one
        sequence wrong if it believes in more keys than there are.
        """
        lens = tuple(length + self._tree_size for length in padded_lens(seq_lens_cpu, planned.bs))
        self._launch(replace(planned, metadata=[with_host_lens(plan, lens) for plan in planned.metadata]))
        live = len(seq_lens_cpu) * self._tree_size
        return VerifyOutputs(self.buffers.rows("verify.logits", live), self.buffers.rows("verify.features", live))

    def abandon(self) -> None:
        """What was prepared will not be launched."""
        self.buffers.release_inputs()

    def _padded(self, bs: int) -> VerifyInputs:
        buffers, rows = self.buffers, bs * self._tree_size
        return VerifyInputs(
            input_ids=buffers.rows("verify.input_ids", rows),
            positions=buffers.rows("verify.positions", rows),
            out_cache_loc=buffers.rows("verify.out_cache_loc", rows),
            mask=buffers.rows("verify.tree_mask", bs),
            req_pool_indices=buffers.rows("verify.req_pool_indices", bs),
            seq_lens=buffers.rows("verify.seq_lens", bs),
        )

    def _plan(self, padded: VerifyInputs, seq_lens_cpu: tuple[int, ...], slack: int = 0) -> list[Metadata]:
        layout = SequenceLayout(padded.req_pool_indices, padded.seq_lens, seq_lens_cpu, slack)
        return [self._planner.verify(layout, padded.mask, self.buffers.workspace)]

    def _locs(self, padded: VerifyInputs) -> list[Tensor]:
        return [padded.out_cache_loc]

    def _forward(self, padded: VerifyInputs, attentions: Sequence[LayerAttention]) -> None:
        result = self._callable.run(padded, attentions[0])
        rows = padded.input_ids.numel()
        self.buffers.rows("verify.logits", rows).copy_(result.logits)
        self.buffers.rows("verify.features", rows).copy_(result.features)

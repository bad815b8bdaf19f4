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
from specdebug.engine.graph.runner import GraphRunner, Planned, StaticBuffer, StaticBuffers, padded_lens, padded_size
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
        metadata = ArenaLayout(guards=guards)
        planner.declare_verify(metadata, max_bs)
        buffers = StaticBuffers(
            "verify",
            max_bs,
            inputs=[
                StaticBuffer("input_ids", tree_size, (), torch.int64),
                StaticBuffer("positions", tree_size, (), torch.int64),
                StaticBuffer("out_cache_loc", tree_size, (), torch.int64),
                StaticBuffer("tree_mask", 1, (tree_size, tree_size), torch.bool),
                StaticBuffer("req_pool_indices", 1, (), torch.int64),
                StaticBuffer("seq_lens", 1, (), torch.int64),
            ],
            metadata=metadata,
            outputs=[
                StaticBuffer("logits", tree_size, (forward.model.config.vocab_size,), dtype),
                StaticBuffer("features", tree_size, (forward.feature_size,), dtype),
            ],
            fill=fill,
            device=device,
        )
        super().__init__(VerifyInputs, config.batch_sizes, buffers, attention, forward.pool)

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
        buffers.load(inputs)
        padded = self._padded(bs)
        return self._planned(bs, padded, self._plan(padded, padded_lens(seq_lens_cpu, bs), slack))

    def launch(self, planned: Planned[VerifyInputs], seq_lens_cpu: tuple[int, ...]) -> VerifyOutputs:
        """Run what was prepared last; the result views static outputs, valid until the next launch.

        ``seq_lens_cpu`` are the lengths themselves: a library that schedules on the host gets several queries of one
        sequence wrong if it believes in more keys than there are.
        """
        lens = tuple(length + self._tree_size for length in padded_lens(seq_lens_cpu, planned.bs))
        self._launch(replace(planned, metadata=[with_host_lens(plan, lens) for plan in planned.metadata]))
        return VerifyOutputs(**self.buffers.outputs_of(len(seq_lens_cpu)))

    def abandon(self) -> None:
        """Release the inputs of what was prepared: it will not be launched."""
        self.buffers.release_inputs()

    def _plan(self, padded: VerifyInputs, seq_lens_cpu: tuple[int, ...], slack: int = 0) -> list[Metadata]:
        layout = SequenceLayout(padded.req_pool_indices, padded.seq_lens, seq_lens_cpu, slack)
        return [self._planner.verify(layout, padded.tree_mask, self.buffers.workspace)]

    def _locs(self, padded: VerifyInputs) -> list[Tensor]:
        return [padded.out_cache_loc]

    def _forward(self, padded: VerifyInputs, attentions: Sequence[LayerAttention]) -> None:
        self.buffers.store(self._callable.run(padded, attentions[0]), padded.seq_lens.numel())

"""Draft extend after a verify, as a graph: T tokens per request, whatever was accepted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_oob
from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.planner import AttentionPlanner, SequenceLayout
from specdebug.engine.config import CudaGraphConfig
from specdebug.engine.graph.runner import GraphRunner, StaticBuffer, StaticBuffers, padded_size
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.memory.fill import FillPolicy
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.speculative.extend import ExtendForward, ExtendInputs, ExtendOutputs


class ExtendGraphRunner(GraphRunner[ExtendInputs]):
    """Replays :class:`ExtendForward` at captured batch sizes; a padded row accepts all T of its zeros."""

    def __init__(
        self,
        config: CudaGraphConfig,
        forward: ExtendForward,
        planner: AttentionPlanner,
        attention: AttentionBackend,
        *,
        tree_size: int,
        target_vocab_size: int,
        dtype: torch.dtype,
        guards: bool,
        fill: FillPolicy,
        device: torch.device,
    ) -> None:
        self._callable = forward
        self._planner = planner
        self._tree_size = tree_size
        self._target_vocab_size = target_vocab_size
        max_bs, model = config.batch_sizes[-1], forward.model
        metadata = ArenaLayout(guards=guards)
        planner.declare_extend(metadata, max_bs, tree_size)
        buffers = StaticBuffers(
            "draft_extend",
            max_bs,
            inputs=[
                StaticBuffer("input_ids", tree_size, (), torch.int64),
                StaticBuffer("positions", tree_size, (), torch.int64),
                StaticBuffer("out_cache_loc", tree_size, (), torch.int64),
                StaticBuffer("features", tree_size, (model.target_feature_size,), dtype),
                StaticBuffer("accept_lengths", 1, (), torch.int64),
                StaticBuffer("req_pool_indices", 1, (), torch.int64),
                StaticBuffer("seq_lens", 1, (), torch.int64),
            ],
            metadata=metadata,
            outputs=[
                StaticBuffer("topk_p", 1, (forward.topk,), torch.float32),
                StaticBuffer("topk_index", 1, (forward.topk,), torch.int64),
                StaticBuffer("hidden_states", 1, (model.hidden_size,), dtype),
            ],
            fill=fill,
            device=device,
        )
        super().__init__(ExtendInputs, config.batch_sizes, buffers, attention, forward.pool)

    def replay(self, inputs: ExtendInputs, seq_lens_cpu: tuple[int, ...]) -> ExtendOutputs:
        """Run at the padded size; the result views static outputs, valid until the next replay."""
        raw_bs, buffers = inputs.seq_lens.numel(), self.buffers
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        if bs != raw_bs:
            buffers["draft_extend.input_ids"].zero_()
            buffers["draft_extend.positions"].zero_()
            buffers["draft_extend.out_cache_loc"].zero_()
            buffers["draft_extend.features"].zero_()
            buffers["draft_extend.accept_lengths"].fill_(self._tree_size)
            buffers["draft_extend.req_pool_indices"].zero_()
            buffers["draft_extend.seq_lens"].zero_()
        buffers.load(inputs)
        self._replay(bs, self._padded(bs), seq_lens_cpu)
        return ExtendOutputs(**buffers.outputs_of(raw_bs))

    def _blank(self) -> None:
        super()._blank()
        self.buffers["draft_extend.accept_lengths"].fill_(self._tree_size)

    def _plan(self, padded: ExtendInputs, seq_lens_cpu: tuple[int, ...]) -> list[Metadata]:
        layout = SequenceLayout(padded.req_pool_indices, padded.seq_lens, seq_lens_cpu)
        return [self._planner.extend_uniform(layout, self._tree_size, self.buffers.workspace)]

    def _locs(self, padded: ExtendInputs) -> list[Tensor]:
        return [padded.out_cache_loc]

    def _forward(self, padded: ExtendInputs, attentions: Sequence[LayerAttention]) -> None:
        nodes = self._tree_size
        with grouped():
            maybe_detect_oob(padded.input_ids, 0, self._target_vocab_size, "draft_extend_graph.replay.input_ids")
            maybe_detect_oob(padded.accept_lengths, 1, nodes + 1, "draft_extend_graph.replay.accept_lengths")
        self.buffers.store(self._callable.run(padded, nodes, attentions[0]), padded.seq_lens.numel())

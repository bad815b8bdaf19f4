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
from specdebug.engine.graph.runner import GraphRunner, StaticBuffers, padded_size
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
        tokens = max_bs * tree_size
        metadata = ArenaLayout(guards=guards)
        planner.declare_extend(metadata, max_bs, tree_size)
        buffers = StaticBuffers(
            inputs=[
                ("draft_extend.input_ids", (tokens,), torch.int64),
                ("draft_extend.positions", (tokens,), torch.int64),
                ("draft_extend.out_cache_loc", (tokens,), torch.int64),
                ("draft_extend.features", (tokens, model.target_feature_size), dtype),
                ("draft_extend.accept_lengths", (max_bs,), torch.int64),
                ("draft_extend.req_pool_indices", (max_bs,), torch.int64),
                ("draft_extend.seq_lens", (max_bs,), torch.int64),
            ],
            metadata=metadata,
            outputs=[
                ("draft_extend.topk_p", (max_bs, forward.topk), torch.float32),
                ("draft_extend.topk_index", (max_bs, forward.topk), torch.int64),
                ("draft_extend.hidden_states", (max_bs, model.hidden_size), dtype),
            ],
            fill=fill,
            device=device,
        )
        super().__init__(config.batch_sizes, buffers, attention, forward.pool)

    def replay(self, inputs: ExtendInputs, seq_lens_cpu: tuple[int, ...]) -> ExtendOutputs:
        """Run at the padded size; the result views static outputs, valid until the next replay."""
        raw_bs, nodes, buffers = inputs.seq_lens.numel(), self._tree_size, self.buffers
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        if bs != raw_bs:
            buffers["draft_extend.input_ids"].zero_()
            buffers["draft_extend.positions"].zero_()
            buffers["draft_extend.out_cache_loc"].zero_()
            buffers["draft_extend.features"].zero_()
            buffers["draft_extend.accept_lengths"].fill_(nodes)
            buffers["draft_extend.req_pool_indices"].zero_()
            buffers["draft_extend.seq_lens"].zero_()
        buffers.load(
            {
                "draft_extend.input_ids": inputs.input_ids,
                "draft_extend.positions": inputs.positions,
                "draft_extend.out_cache_loc": inputs.out_cache_loc,
                "draft_extend.features": inputs.features,
                "draft_extend.accept_lengths": inputs.accept_lengths,
                "draft_extend.req_pool_indices": inputs.req_pool_indices,
                "draft_extend.seq_lens": inputs.seq_lens,
            }
        )
        self._replay(bs, self._padded(bs), seq_lens_cpu)
        return ExtendOutputs(
            buffers.rows("draft_extend.topk_p", raw_bs),
            buffers.rows("draft_extend.topk_index", raw_bs),
            buffers.rows("draft_extend.hidden_states", raw_bs),
        )

    def _blank(self) -> None:
        super()._blank()
        self.buffers["draft_extend.accept_lengths"].fill_(self._tree_size)

    def _padded(self, bs: int) -> ExtendInputs:
        buffers, rows = self.buffers, bs * self._tree_size
        return ExtendInputs(
            input_ids=buffers.rows("draft_extend.input_ids", rows),
            positions=buffers.rows("draft_extend.positions", rows),
            out_cache_loc=buffers.rows("draft_extend.out_cache_loc", rows),
            features=buffers.rows("draft_extend.features", rows),
            accept_lengths=buffers.rows("draft_extend.accept_lengths", bs),
            req_pool_indices=buffers.rows("draft_extend.req_pool_indices", bs),
            seq_lens=buffers.rows("draft_extend.seq_lens", bs),
        )

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
        result = self._callable.run(padded, nodes, attentions[0])
        bs = padded.seq_lens.numel()
        for name, value in (
            ("draft_extend.topk_p", result.topk_p),
            ("draft_extend.topk_index", result.topk_index),
            ("draft_extend.hidden_states", result.hidden_states),
        ):
            self.buffers.rows(name, bs).copy_(value)

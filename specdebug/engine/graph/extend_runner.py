"""Draft extend after a verify, as a graph: T tokens per request, whatever was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from specdebug.async_probe import grouped, maybe_detect_oob
from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.planner import SequenceLayout
from specdebug.engine.graph.runner import GraphRunner, RunnerParts, StaticBuffer
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.speculative.extend import ExtendForward, ExtendInputs, ExtendOutputs


class ExtendGraphRunner(GraphRunner[ExtendInputs, ExtendOutputs]):
    """Replays :class:`ExtendForward` at captured batch sizes; a padded row accepts all T of its zeros."""

    def __init__(
        self,
        parts: RunnerParts,
        forward: ExtendForward,
        attention: AttentionBackend,
        *,
        tree_size: int,
        target_vocab_size: int,
    ) -> None:
        self._callable = forward
        self._tree_size = tree_size
        self._target_vocab_size = target_vocab_size
        model, topk = forward.model, forward.topk
        super().__init__(
            parts,
            "draft_extend",
            attention,
            forward.pool,
            records=(ExtendInputs, ExtendOutputs),
            inputs=[
                StaticBuffer("input_ids", tree_size, (), torch.int64),
                StaticBuffer("positions", tree_size, (), torch.int64),
                StaticBuffer("out_cache_loc", tree_size, (), torch.int64),
                StaticBuffer("features", tree_size, (model.target_feature_size,), parts.dtype),
                StaticBuffer("accept_lengths", 1, (), torch.int64),
                StaticBuffer("req_pool_indices", 1, (), torch.int64),
                StaticBuffer("seq_lens", 1, (), torch.int64),
            ],
            outputs=[
                StaticBuffer("topk_p", 1, (topk,), torch.float32),
                StaticBuffer("topk_index", 1, (topk,), torch.int64),
                StaticBuffer("hidden_states", 1, (model.hidden_size,), parts.dtype),
            ],
            declare=partial(parts.planner.declare_extend, q_len=tree_size),
        )

    def _blank(self) -> None:
        super()._blank()
        self.buffers["draft_extend.accept_lengths"].fill_(self._tree_size)

    def _plan(self, padded: ExtendInputs, seq_lens_cpu: tuple[int, ...]) -> list[Metadata]:
        layout = SequenceLayout(padded.req_pool_indices, padded.seq_lens, seq_lens_cpu)
        return [self._planner.extend_uniform(layout, self._tree_size, self.buffers.workspace)]

    def _run(self, padded: ExtendInputs, attentions: Sequence[LayerAttention]) -> ExtendOutputs:
        nodes = self._tree_size
        with grouped():
            maybe_detect_oob(padded.input_ids, 0, self._target_vocab_size, "draft_extend_graph.replay.input_ids")
            maybe_detect_oob(padded.accept_lengths, 1, nodes + 1, "draft_extend_graph.replay.accept_lengths")
        return self._callable.run(padded, nodes, attentions[0])

"""The extend of next-n layers as a graph: every layer over T + N - 1 tokens per request, whatever was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.planner import SequenceLayout
from specdebug.engine.graph.runner import GraphRunner, RunnerParts, StaticBuffer, padded_size
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.speculative.mtp_extend import MTPExtendForward, MTPExtendInputs, MTPExtendOutputs


class MTPExtendGraphRunner(GraphRunner[MTPExtendInputs, MTPExtendOutputs]):
    """Replays :class:`MTPExtendForward` at captured batch sizes.

    A padded row embeds its tokens, and reads the last positions of the request that its ``req_pool_indices`` names,
    like a live one; all zero, it accepts all T of its zeros and reads the padding row's.
    """

    def __init__(self, parts: RunnerParts, forward: MTPExtendForward, attention: AttentionBackend) -> None:
        self._callable = forward
        self._num_rows = parts.config.max_running_requests + 1
        model, nodes, earlier = forward.chain.model, forward.tree_size, forward.earlier
        super().__init__(
            parts,
            "draft_extend",
            attention,
            forward.chain.pool,
            records=(MTPExtendInputs, MTPExtendOutputs),
            inputs=[
                StaticBuffer("input_ids", nodes, (), torch.int64),
                StaticBuffer("features", nodes, (model.target_feature_size,), parts.dtype),
                StaticBuffer("out_cache_loc", forward.width, (), torch.int64),
                StaticBuffer("accept_lengths", 1, (), torch.int64),
                StaticBuffer("req_pool_indices", 1, (), torch.int64),
                StaticBuffer("seq_lens", 1, (), torch.int64),
            ],
            outputs=[
                StaticBuffer("draft_tokens", 1, (model.num_layers,), torch.int64),
                StaticBuffer("next_ids", 1, (earlier,), torch.int64),
                StaticBuffer("hidden_states", 1, (earlier, model.hidden_size), parts.dtype),
            ],
            declare=partial(parts.planner.declare_extend, q_len=forward.width),
        )

    def replay(self, inputs: MTPExtendInputs, seq_lens_cpu: tuple[int, ...]) -> MTPExtendOutputs:
        """As of any runner, and probe what is replayed."""
        raw_bs, buffers = inputs.seq_lens.numel(), self.buffers
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        if bs != raw_bs:
            buffers["draft_extend.seq_lens"].zero_()
            buffers["draft_extend.out_cache_loc"].zero_()
            buffers["draft_extend.accept_lengths"].fill_(self._callable.tree_size)
            buffers["draft_extend.input_ids"].zero_()
            buffers["draft_extend.features"].zero_()
            buffers["draft_extend.req_pool_indices"].zero_()
        buffers.load(inputs)
        padded = self._padded(bs)
        self._probe(padded)
        return self._replay(bs, padded, seq_lens_cpu)

    def _probe(self, padded: MTPExtendInputs) -> None:
        """Padded rows included: they are embedded, gathered and attended like live ones."""
        vocab_size, nodes = self._callable.chain.model.vocab_size, self._callable.tree_size
        with grouped():
            maybe_detect_oob(padded.input_ids, 0, vocab_size, "mtp_graph.replay.input_ids")
            maybe_detect_oob(padded.accept_lengths, 1, nodes + 1, "mtp_graph.replay.accept_lengths")
            maybe_detect_oob(padded.req_pool_indices, 0, self._num_rows, "mtp_graph.replay.req_pool_indices")
            maybe_detect_nan(padded.features, "mtp_graph.replay.hidden_states")

    def _blank(self) -> None:
        super()._blank()
        self.buffers["draft_extend.accept_lengths"].fill_(self._callable.tree_size)

    def _plan(self, padded: MTPExtendInputs, seq_lens_cpu: tuple[int, ...]) -> list[Metadata]:
        layout = self._callable.layout(SequenceLayout(padded.req_pool_indices, padded.seq_lens, seq_lens_cpu))
        return [self._planner.extend_uniform(layout, self._callable.width, self.buffers.workspace)]

    def _run(self, padded: MTPExtendInputs, attentions: Sequence[LayerAttention]) -> MTPExtendOutputs:
        return self._callable.run(padded, attentions[0])

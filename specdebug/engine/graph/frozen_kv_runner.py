"""The passes of a frozen-KV draft as one graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.graph.draft_runner import candidate_buffers
from specdebug.engine.graph.runner import GraphRunner, RunnerParts, StaticBuffer, padded_size
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.speculative.frozen_kv_loop import FrozenKVInputs, FrozenKVLoop, last_positions
from specdebug.engine.speculative.selection import DraftCandidates


class FrozenKVGraphRunner(GraphRunner[FrozenKVInputs, DraftCandidates]):
    """Replays :class:`FrozenKVLoop` at captured batch sizes.

    A padded row embeds token 0 and attends one key: the first cell of the padding row, which is slot 0.
    """

    def __init__(self, parts: RunnerParts, loop: FrozenKVLoop, attention: AttentionBackend) -> None:
        self._loop = loop
        self._num_rows = parts.config.max_running_requests + 1
        topk = loop.topk

        def declare(layout: ArenaLayout, max_bs: int) -> None:
            parts.planner.declare_extend(layout, max_bs * topk, 1)

        super().__init__(
            parts,
            "draft",
            attention,
            loop.pool,
            records=(FrozenKVInputs, DraftCandidates),
            inputs=[
                StaticBuffer("input_ids", 1, (), torch.int64),
                StaticBuffer("hidden_states", 1, (loop.model.hidden_size,), parts.dtype),
                StaticBuffer("req_pool_indices", 1, (), torch.int64),
                StaticBuffer("seq_lens", 1, (), torch.int64),
                StaticBuffer("positions", topk, (), torch.int64),
            ],
            outputs=candidate_buffers(topk, loop.num_steps, loop.tree_size),
            declare=declare,
        )

    def replay(self, inputs: FrozenKVInputs, seq_lens_cpu: tuple[int, ...]) -> DraftCandidates:
        """As of any runner, and probe what is replayed."""
        raw_bs, buffers = inputs.seq_lens.numel(), self.buffers
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        if bs != raw_bs:
            buffers["draft.input_ids"].zero_()
            buffers["draft.hidden_states"].zero_()
            buffers["draft.req_pool_indices"].zero_()
            buffers["draft.seq_lens"].zero_()
            buffers["draft.positions"].zero_()
        buffers.load(inputs)
        padded = self._padded(bs)
        with grouped():  # padded rows included: they are planned, embedded and attended like live ones
            maybe_detect_oob(padded.input_ids, 0, self._loop.target_vocab_size, "draft_graph.replay.input_ids")
            maybe_detect_oob(padded.req_pool_indices, 0, self._num_rows, "draft_graph.replay.req_pool_indices")
            maybe_detect_nan(padded.hidden_states, "draft_graph.replay.hidden_states")
            last = last_positions(padded.seq_lens, self._loop.topk)
            maybe_detect_oob(padded.positions, 0, 1, "draft_graph.replay.positions", relative_to=last)
        return self._replay(bs, padded, seq_lens_cpu)

    def _plan(self, padded: FrozenKVInputs, seq_lens_cpu: tuple[int, ...]) -> list[Metadata]:
        return [self._loop.plan(self._planner, padded, seq_lens_cpu, self.buffers.workspace)]

    def _run(self, padded: FrozenKVInputs, attentions: Sequence[LayerAttention]) -> DraftCandidates:
        return self._loop.run(padded, attentions[0])

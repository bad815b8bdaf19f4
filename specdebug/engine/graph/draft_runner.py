"""The whole draft loop as one graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.planner import DraftLayout
from specdebug.engine.graph.runner import GraphRunner, RunnerParts, StaticBuffer, padded_size
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.speculative.draft import DraftInputs, DraftLoop
from specdebug.engine.speculative.selection import DraftCandidates


class DraftGraphRunner(GraphRunner[DraftInputs, DraftCandidates]):
    """Replays :class:`DraftLoop` at captured batch sizes.

    Padding rows must be coherent with each other: kv_indptr comes from ``positions``, index lists from
    ``seq_lens`` and ``req_pool_indices``; all zero makes a padded branch attend only its own slot 0.
    """

    def __init__(self, parts: RunnerParts, loop: DraftLoop, attention: AttentionBackend) -> None:
        self._loop = loop
        self._num_rows = parts.config.max_running_requests + 1
        topk, steps, nodes = loop.topk, loop.num_steps, loop.tree_size
        super().__init__(
            parts,
            "draft",
            attention,
            loop.pool,
            records=(DraftInputs, DraftCandidates),
            inputs=[
                StaticBuffer("topk_p", 1, (topk,), torch.float32),
                StaticBuffer("topk_index", 1, (topk,), torch.int64),
                StaticBuffer("hidden_states", 1, (loop.model.hidden_size,), parts.dtype),
                StaticBuffer("req_pool_indices", 1, (), torch.int64),
                StaticBuffer("seq_lens", 1, (), torch.int64),
                StaticBuffer("positions", topk, (), torch.int64),
                StaticBuffer("out_cache_loc", topk, (steps,), torch.int64),
            ],
            outputs=candidate_buffers(topk, steps, nodes),
            declare=parts.planner.declare_draft,
        )

    def replay(self, inputs: DraftInputs, seq_lens_cpu: tuple[int, ...]) -> DraftCandidates:
        """As of any runner, and probe what is replayed."""
        raw_bs, buffers = inputs.seq_lens.numel(), self.buffers
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        if bs != raw_bs:
            buffers["draft.seq_lens"].zero_()
            buffers["draft.out_cache_loc"].zero_()
            buffers["draft.positions"].zero_()
            buffers["draft.topk_p"].zero_()
            buffers["draft.topk_index"].zero_()
            buffers["draft.hidden_states"].zero_()
            buffers["draft.req_pool_indices"].zero_()
        buffers.load(inputs)
        padded = self._padded(bs)
        self._probe(padded)
        return self._replay(bs, padded, seq_lens_cpu)

    def _probe(self, padded: DraftInputs) -> None:
        """Padded rows included: they are planned, embedded, gathered and attended like live ones."""
        with grouped():
            maybe_detect_oob(padded.topk_index, 0, self._loop.model.vocab_size, "draft_graph.replay.topk_index")
            maybe_detect_oob(padded.req_pool_indices, 0, self._num_rows, "draft_graph.replay.req_pool_indices")
            maybe_detect_nan(padded.topk_p, "draft_graph.replay.topk_p")
            maybe_detect_nan(padded.hidden_states, "draft_graph.replay.hidden_states")

    def _plan(self, padded: DraftInputs, seq_lens_cpu: tuple[int, ...]) -> list[Metadata]:
        layout = DraftLayout(
            padded.req_pool_indices, padded.seq_lens, padded.positions, padded.out_cache_loc, seq_lens_cpu
        )
        return self._planner.draft_decode(layout, self.buffers.workspace)

    def _locs(self, padded: DraftInputs) -> list[Tensor]:
        return self._loop.locs(padded)

    def _run(self, padded: DraftInputs, attentions: Sequence[LayerAttention]) -> DraftCandidates:
        return self._loop.run(padded, attentions)


def candidate_buffers(topk: int, steps: int, nodes: int) -> list[StaticBuffer]:
    """The static buffers of ``DraftCandidates``, whatever drafts them."""
    return [
        StaticBuffer("parent_list", 1, (topk * (steps - 1) + 1 if steps > 1 else 0,), torch.int64),
        StaticBuffer("top_scores_index", 1, (nodes - 1,), torch.int64),
        StaticBuffer("draft_tokens", 1, (nodes - 1,), torch.int64),
    ]

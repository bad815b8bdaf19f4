"""The whole draft loop as one graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.attention.backend import AttentionBackend
from specdebug.engine.attention.metadata import Metadata
from specdebug.engine.attention.planner import AttentionPlanner, DraftLayout
from specdebug.engine.config import CudaGraphConfig
from specdebug.engine.graph.runner import GraphRunner, StaticBuffer, StaticBuffers, padded_size
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.memory.fill import FillPolicy
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.speculative.draft import DraftCandidates, DraftInputs, DraftLoop


class DraftGraphRunner(GraphRunner[DraftInputs]):
    """Replays :class:`DraftLoop` at captured batch sizes.

    Padding rows must be coherent with each other: kv_indptr comes from ``positions``, index lists from
    ``seq_lens`` and ``req_pool_indices``; all zero makes a padded branch attend only its own slot 0.
    """

    def __init__(
        self,
        config: CudaGraphConfig,
        loop: DraftLoop,
        planner: AttentionPlanner,
        attention: AttentionBackend,
        *,
        num_rows: int,
        hidden_dtype: torch.dtype,
        guards: bool,
        fill: FillPolicy,
        device: torch.device,
    ) -> None:
        self._loop = loop
        self._planner = planner
        self._num_rows = num_rows
        topk, steps, nodes = loop.topk, loop.num_steps, loop.tree_size
        max_bs = config.batch_sizes[-1]
        metadata = ArenaLayout(guards=guards)
        planner.declare_draft(metadata, max_bs)
        buffers = StaticBuffers(
            "draft",
            max_bs,
            inputs=[
                StaticBuffer("topk_p", 1, (topk,), torch.float32),
                StaticBuffer("topk_index", 1, (topk,), torch.int64),
                StaticBuffer("hidden_states", 1, (loop.model.hidden_size,), hidden_dtype),
                StaticBuffer("req_pool_indices", 1, (), torch.int64),
                StaticBuffer("seq_lens", 1, (), torch.int64),
                StaticBuffer("positions", topk, (), torch.int64),
                StaticBuffer("out_cache_loc", topk, (steps,), torch.int64),
            ],
            metadata=metadata,
            outputs=[
                StaticBuffer("parent_list", 1, (topk * (steps - 1) + 1 if steps > 1 else 0,), torch.int64),
                StaticBuffer("top_scores_index", 1, (nodes - 1,), torch.int64),
                StaticBuffer("draft_tokens", 1, (nodes - 1,), torch.int64),
            ],
            fill=fill,
            device=device,
        )
        super().__init__(DraftInputs, config.batch_sizes, buffers, attention, loop.pool)

    def replay(self, inputs: DraftInputs, seq_lens_cpu: tuple[int, ...]) -> DraftCandidates:
        """Run at the padded size; the result views static outputs, valid until the next replay."""
        raw_bs = inputs.topk_p.shape[0]
        bs = padded_size(self.capture_bs, raw_bs)
        assert bs is not None
        buffers = self.buffers
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
        self._replay(bs, padded, seq_lens_cpu)
        return DraftCandidates(**buffers.outputs_of(raw_bs))

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

    def _forward(self, padded: DraftInputs, attentions: Sequence[LayerAttention]) -> None:
        self.buffers.store(self._loop.run(padded, attentions), padded.seq_lens.numel())

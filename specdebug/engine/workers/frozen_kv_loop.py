"""The passes of a frozen-KV draft, of which ``frozen_kv.py`` says what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.graph.forward import EngineParts
from specdebug.engine.graph.runner import GraphTable, StaticBuffer
from specdebug.engine.graph.tables import IDS, candidate_buffers
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.textbook.attention.metadata import Metadata
from specdebug.engine.textbook.attention.planner import AttentionPlanner, SequenceLayout
from specdebug.engine.textbook.attention.workspace import Workspace
from specdebug.engine.textbook.speculative.draft import DraftPasses
from specdebug.engine.textbook.speculative.tree import DraftCandidates, Roots, per_branch, top_k_probs


@dataclass(frozen=True)
class FrozenKVInputs:
    """input_ids: int64 [B], bonus tokens. hidden_states: [B, H], the target's at L - 1. req_pool_indices, seq_lens (L):
    int64 [B]. positions: int64 [B·K], of every branch's queries."""

    input_ids: Tensor
    hidden_states: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    positions: Tensor

    @property
    def out_cache_loc(self) -> None:
        """No slot is written."""


def last_positions(seq_lens: Tensor, topk: int) -> Tensor:
    """max(L - 1, 0) of every branch: int64 [B·K]."""
    return (seq_lens - 1).clamp_(min=0).repeat_interleave(topk)  # adjacent also of one request, as kernels take it


class FrozenKVLoop(DraftPasses[FrozenKVInputs]):
    """The passes of one assistant over the target's pool."""

    def plan(
        self, planner: AttentionPlanner, inputs: FrozenKVInputs, lens: tuple[int, ...], workspace: Workspace, slack: int
    ) -> list[Metadata]:
        """Plan [0, L) for one query of every branch, by which all passes attend; lengths are at most ``lens``.

        It is the plan of decoding position L - 1 again. What is planned a step early is longer by T at most than what
        the host knows, of which at least one token was accepted.
        """
        before = tuple(max(length - 1, 0) for length in lens for _ in range(self.topk))
        slack = min(len(before) * (self.tree_size - 1), sum(before))
        rows = inputs.req_pool_indices.repeat_interleave(self.topk)
        return [planner.extend_uniform(SequenceLayout(rows, inputs.positions, before, slack), 1, workspace)]

    def run(self, inputs: FrozenKVInputs, attentions: Sequence[LayerAttention]) -> DraftCandidates:
        """S passes, all under one attention."""
        topk, attention = self.topk, attentions[0]
        last = last_positions(inputs.seq_lens, topk)

        def one_pass(number: int, tokens: Tensor, hidden: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
            with grouped():
                maybe_detect_oob(inputs.positions, 0, 1, "draft.forward.positions", relative_to=last)
                maybe_detect_oob(tokens, 0, self.target_vocab_size, "draft.forward.input_ids")
            hidden = self.model.forward(tokens, inputs.positions, hidden, attention)
            return self._read_out(number, tokens, parents, hidden), hidden

        itself = self._selection.branches(inputs.seq_lens.numel())
        bonus, hidden = inputs.input_ids.repeat_interleave(topk), per_branch(inputs.hidden_states, topk)
        logits, hidden = one_pass(0, bonus, hidden, itself)
        topk_p, ids = top_k_probs(logits[::topk], topk)
        roots = Roots(topk_p, self.model.to_target_ids(ids), hidden)
        return self._selection.grow(roots, lambda step, *read: one_pass(step + 1, *read))


def frozen_kv_table(parts: EngineParts, loop: FrozenKVLoop) -> GraphTable[FrozenKVInputs, DraftCandidates]:
    """The static buffers of the passes. A padded row embeds token 0 and attends one key: the first cell of the padding
    row, which is slot 0."""
    topk = loop.topk

    def declare(layout: ArenaLayout, max_bs: int) -> None:
        parts.planner.declare_extend(layout, max_bs * topk, 1)

    def probe(padded: FrozenKVInputs) -> None:
        with grouped():
            rows, last = parts.config.max_running_requests + 1, last_positions(padded.seq_lens, topk)
            maybe_detect_oob(padded.input_ids, 0, loop.target_vocab_size, "draft_graph.replay.input_ids")
            maybe_detect_oob(padded.req_pool_indices, 0, rows, "draft_graph.replay.req_pool_indices")
            maybe_detect_nan(padded.hidden_states, "draft_graph.replay.hidden_states")
            maybe_detect_oob(padded.positions, 0, 1, "draft_graph.replay.positions", relative_to=last)

    return GraphTable(
        (FrozenKVInputs, DraftCandidates),
        inputs=[
            StaticBuffer("input_ids", 1, (), IDS),
            StaticBuffer("hidden_states", 1, (loop.model.hidden_size,), parts.dtype),
            StaticBuffer("req_pool_indices", 1, (), IDS),
            StaticBuffer("seq_lens", 1, (), IDS),
            StaticBuffer("positions", topk, (), IDS),
        ],
        outputs=candidate_buffers(topk, loop.num_steps, loop.tree_size),
        declare=declare,
        pad=pad_frozen_kv,
        probe=probe,
    )


def pad_frozen_kv(inputs: FrozenKVInputs) -> None:
    """Make every row a padding row."""
    inputs.input_ids.zero_()
    inputs.hidden_states.zero_()
    inputs.req_pool_indices.zero_()
    inputs.seq_lens.zero_()
    inputs.positions.zero_()

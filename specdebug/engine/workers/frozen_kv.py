"""Drafting with an assistant that reads the target's KV and keeps none: frozen-KV MTP.

Stage 1 is S passes: a seed pass on the bonus token and the target's hidden state at L - 1, whose K best tokens are the
roots, then S - 1 passes, each on the tokens drafted last and the hidden states of the pass before. All of them ask from
position L - 1 and attend the target's KV of [0, L). With K branches a request has K rows, in the seed pass all alike.
Stage 6 keeps the target's hidden state at the last accepted position. Source: SGLang ``frozen_kv_mtp_worker.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.engine.graph.runner import EngineParts, GraphTable, StaticBuffer, launcher
from specdebug.engine.graph.tables import candidate_buffers, ids
from specdebug.engine.memory.arena import ArenaLayout
from specdebug.engine.model.interface import DraftModel, LayerAttention
from specdebug.engine.textbook.attention.planner import AttentionPlanner, Metadata, SequenceLayout, Workspace
from specdebug.engine.textbook.request import PrefillBatch
from specdebug.engine.textbook.speculative.accept import Compacted, last_accepted_rows
from specdebug.engine.textbook.speculative.draft import DraftPasses, StateTable, StepState
from specdebug.engine.textbook.speculative.tree import DraftCandidates, Roots, per_branch, top_k_probs
from specdebug.engine.workers.protocol import DrafterParts


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
        """Plan decoding position L - 1 again, a query of every branch, by which all passes attend. A step begun early
        is longer by T at most than what the host knows, of which at least one token was accepted."""
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
    """The static buffers of the passes. A padded row embeds token 0 and attends the padding row's first cell."""
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
            *ids(1, "input_ids"),
            StaticBuffer("hidden_states", 1, (loop.model.hidden_size,), parts.dtype),
            *ids(1, "req_pool_indices", "seq_lens"),
            *ids(topk, "positions"),
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


@dataclass(frozen=True)
class FrozenKVState(StepState):
    """hidden_states: [B, H], the target's at position L - 1. There is no top-k yet: the seed pass finds it."""

    hidden_states: Tensor
    topk_p: None = None
    topk_index: None = None


class FrozenKVDrafter:
    """The ``Drafter`` of one assistant: it owns the target's hidden states that drafts start from, and one runner."""

    extend_runner = None

    def __init__(self, parts: DrafterParts) -> None:
        worker, spec = parts.worker, parts.worker.spec
        self.model = assistant = cast(DraftModel, worker.draft)  # the loader of this algorithm made it
        self._vocab_size, self._tree_size = worker.vocab_size, spec.tree_size
        hidden = (assistant.hidden_size,), worker.dtype
        self.state = StateTable(FrozenKVState, worker.config.max_running_requests, worker.device, hidden)
        self._loop = loop = FrozenKVLoop(
            assistant, worker.memory.target, spec, target_vocab_size=worker.vocab_size, observers=worker.observers
        )
        table = frozen_kv_table(worker, loop)
        self._draft = launcher(worker, loop, worker.draft_attention, parts.workspace, table)
        self.draft_runner = self._draft.runner

    def draft(self, rows: Tensor, state: FrozenKVState, slots: Tensor, lens_cpu: tuple[int, ...]) -> DraftCandidates:
        with grouped():
            maybe_detect_oob(state.bonus, 0, self._vocab_size, "draft.bonus")
            maybe_detect_nan(state.hidden_states, "draft.hidden_states")
        positions = last_positions(state.seq_lens, self._loop.topk)
        inputs = FrozenKVInputs(state.bonus, state.hidden_states, rows, state.seq_lens, positions)
        return self._draft.run(inputs, lens_cpu)

    def extend(self, batch: SequenceLayout, compacted: Compacted, slots: Tensor) -> None:
        maybe_detect_nan(compacted.features, "draft_extend.features")
        last = last_accepted_rows(compacted.accept_lengths, self._tree_size)
        self._keep(batch.req_pool_indices, compacted.features, last)

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        self._keep(batch.req_pool_indices, features, batch.last_rows())

    def _keep(self, rows: Tensor, features: Tensor, last: Tensor) -> None:
        """Keep the features [n, F] at rows ``last`` (int64 [B]), one of each request."""
        self.state.store(rows, self.model.project(features.index_select(0, last)))

"""Stage 6 of drafting by next-n layers: every layer over the accepted tokens, one after another.

Layer i at position p reads token p+1+i. So at the last N - 1 positions of a step some layers had to read drafts, and
the next step goes over them again, when the tokens are known: all layers run over the same T + N - 1 rows a request,
L-N+1 .. L+T-1, of which layer i needs the last T + i. From layer to layer the ids move up by one row, and at the last
accepted row what the layer before drafted moves in behind them.

Source: SGLang ``MultiLayerEagleWorkerV2``, whose layers grow by a row each instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_nonfinite, maybe_detect_oob
from specdebug.engine.graph.forward import EngineParts, StepForward
from specdebug.engine.graph.runner import GraphTable, StaticBuffer
from specdebug.engine.graph.tables import IDS
from specdebug.engine.kernels.argmax import argmax
from specdebug.engine.kernels.mtp_rows import mtp_rows
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.mtp import MTPDraft
from specdebug.engine.textbook.attention.metadata import Metadata
from specdebug.engine.textbook.attention.planner import AttentionPlanner, SequenceLayout
from specdebug.engine.textbook.attention.workspace import Workspace
from specdebug.engine.workers.mtp_state import MTPStateTable, RecentPositions
from specdebug.events import Forward


@dataclass(frozen=True)
class MTPExtendInputs:
    """input_ids: int64 [B·T], accepted tokens first. features: [B·T, H]. out_cache_loc: int64 [B·(T+N-1)], slots of all
    rows. accept_lengths, req_pool_indices, seq_lens (L before the step): int64 [B]."""

    input_ids: Tensor
    features: Tensor
    out_cache_loc: Tensor
    accept_lengths: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor


@dataclass(frozen=True)
class MTPExtendOutputs:
    """The next drafts, draft_tokens [B, N], and the last N - 1 positions, next_ids [B, N-1] and hidden_states
    [B, N-1, H], as ``MTPState`` and ``RecentPositions`` have them."""

    draft_tokens: Tensor
    next_ids: Tensor
    hidden_states: Tensor

    @property
    def recent(self) -> RecentPositions:
        return RecentPositions(self.next_ids, self.hidden_states)


class ChainRows(NamedTuple):
    """Rows that all layers run over, one request's after another's.

    next_ids, positions: int64 [n], of each row the token after its position. hidden_states: [n, H], the target's.
    following: int64 [n], the row of the next position. last: int64 [B], each request's last position with target KV.
    """

    next_ids: Tensor
    positions: Tensor
    hidden_states: Tensor
    following: Tensor
    last: Tensor


class ChainProbes(NamedTuple):
    """The probes of a layer's ids before it runs, and of its hidden states after: of ``every_row``, or of the last."""

    input_ids: Callable[[Tensor], None]
    hidden_states: Callable[[Tensor], None]
    every_row: bool


class LayerChain:
    """All layers over the same rows: each writes its own draft KV, and drafts one token."""

    def __init__(self, model: MTPDraft, pool: KVPool) -> None:
        self.model = model
        self.pool = pool

    def run(
        self, rows: ChainRows, attention: LayerAttention, probes: ChainProbes, tail: Tensor | None = None
    ) -> Tensor:
        """The best draft of each layer behind the last rows: int64 [B, N].

        Attention reaches every row, the MLP those whose output is read: all only if layers are chained or probed so.
        tail: int64 [B, N], the token that layer i reads at the last row, where one is known, else -1.
        """
        model, ids, hidden = self.model, rows.next_ids, rows.hidden_states
        whole = model.chain_hidden_states or probes.every_row
        drafts: list[Tensor] = []
        for index in range(model.num_layers):
            if drafts:
                known = drafts[-1] if tail is None else torch.where(tail[:, index] < 0, drafts[-1], tail[:, index])
                ids = ids.index_select(0, rows.following).index_copy_(0, rows.last, known)
            probes.input_ids(ids)
            output = model.forward(index, ids, rows.positions, hidden, attention, None if whole else rows.last)
            last = output.index_select(0, rows.last) if whole else output
            probes.hidden_states(output if probes.every_row else last)
            logits = model.logits(index, last)
            maybe_detect_nonfinite(logits, "draft_extend.logits")
            drafts.append(argmax(logits))
            maybe_detect_oob(drafts[-1].unsqueeze(1), 0, model.vocab_size, "draft_extend.topk_index")
            hidden = output if model.chain_hidden_states else hidden
        return torch.stack(drafts, dim=1)


class MTPExtendForward(StepForward[MTPExtendInputs, MTPExtendOutputs]):
    """The callable: all layers over the accepted tokens and the N - 1 positions before them."""

    name: Forward = "draft_extend"

    def __init__(self, chain: LayerChain, state: MTPStateTable, *, tree_size: int) -> None:
        self.chain = chain
        self.pool = chain.pool
        self.tree_size = tree_size
        self.earlier = chain.model.num_layers - 1
        self.width = tree_size + self.earlier
        self._state = state
        self._looks = ChainProbes(self._look_at_ids, self._look_at_hidden, every_row=False)
        self._following: dict[int, Tensor] = {}  # by batch size

    def layout(self, batch: SequenceLayout) -> SequenceLayout:
        """The batch as it was N - 1 positions ago, or at its beginning: where the rows start."""
        lens_cpu = tuple(max(length - self.earlier, 0) for length in batch.seq_lens_cpu)
        return replace(batch, seq_lens=(batch.seq_lens - self.earlier).clamp_(min=0), seq_lens_cpu=lens_cpu)

    def plan(
        self,
        planner: AttentionPlanner,
        inputs: MTPExtendInputs,
        lens: tuple[int, ...],
        workspace: Workspace,
        slack: int,
    ) -> list[Metadata]:
        batch = SequenceLayout(inputs.req_pool_indices, inputs.seq_lens, lens, slack)
        return [planner.extend_uniform(self.layout(batch), self.width, workspace)]

    def run(self, inputs: MTPExtendInputs, attentions: Sequence[LayerAttention]) -> MTPExtendOutputs:
        """Compute T + N - 1 rows each. A request that is shorter than N - 1 has that many more behind its tokens."""
        found = mtp_rows(
            inputs.input_ids,
            inputs.features,
            *self._state.recent_table,
            inputs.req_pool_indices,
            inputs.seq_lens,
            inputs.accept_lengths,
        )
        following = self._following_of(inputs.seq_lens.numel(), inputs.seq_lens.device)
        rows = ChainRows(found.next_ids, found.positions, found.hidden_states, following, found.last)
        drafts = self.chain.run(rows, attentions[0], self._looks)
        return MTPExtendOutputs(drafts, found.kept_ids, found.kept_hidden)

    def _following_of(self, batch: int, device: torch.device) -> Tensor:
        """``ChainRows.following``, which no length changes: made once, for graphs read it where it lies."""
        if batch not in self._following:
            number = torch.arange(batch * self.width, device=device).view(batch, -1)
            self._following[batch] = torch.minimum(number + 1, number[:, -1:]).view(-1)
        return self._following[batch]

    def _look_at_ids(self, ids: Tensor) -> None:
        maybe_detect_oob(ids, 0, self.chain.model.vocab_size, "mtp_extend.input_ids")

    def _look_at_hidden(self, hidden: Tensor) -> None:
        maybe_detect_nan(hidden, "mtp_extend.hidden_states")


def mtp_table(parts: EngineParts, forward: MTPExtendForward) -> GraphTable[MTPExtendInputs, MTPExtendOutputs]:
    """The static buffers of the extend: every layer over T + N - 1 tokens per request, whatever was accepted.

    A padded row embeds its tokens, and reads the last positions of the request that its ``req_pool_indices`` names,
    like a live one; all zero, it accepts all T of its zeros and reads the padding row's.
    """
    model, nodes, earlier = forward.chain.model, forward.tree_size, forward.earlier

    def pad(inputs: MTPExtendInputs) -> None:
        pad_mtp(inputs)
        inputs.accept_lengths.fill_(nodes)

    def probe(padded: MTPExtendInputs) -> None:
        with grouped():
            rows = parts.config.max_running_requests + 1
            maybe_detect_oob(padded.input_ids, 0, model.vocab_size, "mtp_graph.replay.input_ids")
            maybe_detect_oob(padded.accept_lengths, 1, nodes + 1, "mtp_graph.replay.accept_lengths")
            maybe_detect_oob(padded.req_pool_indices, 0, rows, "mtp_graph.replay.req_pool_indices")
            maybe_detect_nan(padded.features, "mtp_graph.replay.hidden_states")

    return GraphTable(
        (MTPExtendInputs, MTPExtendOutputs),
        inputs=[
            StaticBuffer("input_ids", nodes, (), IDS),
            StaticBuffer("features", nodes, (model.target_feature_size,), parts.dtype),
            StaticBuffer("out_cache_loc", forward.width, (), IDS),
            StaticBuffer("accept_lengths", 1, (), IDS),
            StaticBuffer("req_pool_indices", 1, (), IDS),
            StaticBuffer("seq_lens", 1, (), IDS),
        ],
        outputs=[
            StaticBuffer("draft_tokens", 1, (model.num_layers,), IDS),
            StaticBuffer("next_ids", 1, (earlier,), IDS),
            StaticBuffer("hidden_states", 1, (earlier, model.hidden_size), parts.dtype),
        ],
        declare=partial(parts.planner.declare_extend, q_len=forward.width),
        pad=pad,
        probe=probe,
    )


def pad_mtp(inputs: MTPExtendInputs) -> None:
    """Clear every row but for how much it accepts."""
    inputs.seq_lens.zero_()
    inputs.out_cache_loc.zero_()
    inputs.input_ids.zero_()
    inputs.features.zero_()
    inputs.req_pool_indices.zero_()

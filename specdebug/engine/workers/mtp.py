"""Drafting with N next-n layers (multi-layer MTP): an extend leaves the whole next chain, so stage 1 only reads it.

Draft KV of layer i in slot p is a function of (token p+1+i, target hidden p; or of all tokens up to there, if layers
are chained), so a slot is settled once N tokens follow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple, cast

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_nonfinite, maybe_detect_oob
from specdebug.base.errors import InvalidOption
from specdebug.engine.device import upload
from specdebug.engine.graph.forward import EngineParts, StepForward
from specdebug.engine.graph.runner import GraphTable, StaticBuffer, launcher
from specdebug.engine.graph.tables import IDS
from specdebug.engine.kernels.cache_locs import verify_cache_locs
from specdebug.engine.kernels.kv_cache import mtp_rows
from specdebug.engine.kernels.logits import argmax
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.mtp import MTPDraft
from specdebug.engine.textbook.attention.planner import (
    AttentionPlanner,
    ExtendLayout,
    Metadata,
    SequenceLayout,
    Workspace,
)
from specdebug.engine.textbook.request import PrefillBatch, Request
from specdebug.engine.textbook.speculative.accept import Compacted
from specdebug.engine.textbook.speculative.draft import LengthTable, StepState
from specdebug.engine.textbook.speculative.eagle import prepare_cached_prefix
from specdebug.engine.textbook.speculative.tree import DraftCandidates
from specdebug.engine.workers.protocol import DrafterParts
from specdebug.events import Forward


@dataclass(frozen=True)
class MTPState(StepState):
    """draft_tokens: int64 [B, N], the drafts of the next step, one of each layer. hidden_states: [B, N-1, H], as of
    ``RecentPositions``. topk_p, topk_index: None, for there is nothing left to choose from."""

    draft_tokens: Tensor
    hidden_states: Tensor
    topk_p: None = None
    topk_index: None = None


@dataclass(frozen=True)
class RecentPositions:
    """The last N - 1 positions with target KV, L-N+1 .. L-1, which the next extend goes over once more: some
    layers have read drafts there.

    next_ids: int64 [B, N-1], the token after each. hidden_states: [B, N-1, H], the target's. Entries of positions
    before the first mean nothing.
    """

    next_ids: Tensor
    hidden_states: Tensor


class MTPStateTable(LengthTable):
    """MTPState and RecentPositions for every row of ``req_to_token``. Row 0, of padding, is never written."""

    def __init__(
        self, rows: int, *, num_layers: int, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(rows, device)
        zeros, earlier = partial(torch.zeros, device=device), num_layers - 1
        self._draft_tokens = zeros((rows + 1, num_layers), dtype=torch.int64)
        self._next_ids = zeros((rows + 1, earlier), dtype=torch.int64)
        self._hidden = zeros((rows + 1, earlier, hidden_size), dtype=dtype)

    def gather(self, rows: Tensor) -> MTPState:
        """Return the start of the next step of the given rows (int64 [B])."""
        return self.read(rows)

    def read(self, rows: Tensor) -> MTPState:
        """Copies of the given rows (int64 [B])."""
        columns = (self.seq_lens, self.bonus, self._draft_tokens, self._hidden)
        seq_lens, bonus, draft_tokens, hidden_states = (column.index_select(0, rows) for column in columns)
        return MTPState(seq_lens, bonus, draft_tokens, hidden_states)

    @property
    def recent_table(self) -> tuple[Tensor, Tensor]:
        """``RecentPositions`` of all rows, where they are kept: int64 [R + 1, N-1] and [R + 1, N-1, H]."""
        return self._next_ids, self._hidden

    def recent(self, rows: Tensor) -> RecentPositions:
        """Copies of what is kept of the last positions of the given rows (int64 [B])."""
        return RecentPositions(self._next_ids.index_select(0, rows), self._hidden.index_select(0, rows))

    def store_drafts(self, rows: Tensor, draft_tokens: Tensor, recent: RecentPositions) -> None:
        """Keep what the layers predict for the positions after the bonus token, and the last positions."""
        self._draft_tokens.index_copy_(0, rows, draft_tokens)
        self._next_ids.index_copy_(0, rows, recent.next_ids)
        self._hidden.index_copy_(0, rows, recent.hidden_states)


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


class _Span(NamedTuple):
    """A prompt chunk of ``chunk`` tokens from position ``start``, and the ``again`` positions before it that all layers
    go over once more."""

    request: Request
    start: int
    chunk: int
    again: int

    @property
    def first(self) -> int:
        return self.start - self.again

    @property
    def stop(self) -> int:
        return self.start + self.chunk

    @property
    def rows(self) -> int:
        return self.again + self.chunk


class MTPDrafter:
    """The ``Drafter`` of next-n layers: it owns their state, the extend's runner and the draft pool's content.

    Raises InvalidOption if the step is not as long as there are layers.
    """

    draft_runner = None

    def __init__(self, parts: DrafterParts) -> None:
        worker = parts.worker
        self.model = model = cast(MTPDraft, worker.draft)  # the loader of this algorithm made it
        _check_fit(parts, model)
        self._parts = worker
        self._workspace = parts.workspace
        self.state = MTPStateTable(
            worker.config.max_running_requests,
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            dtype=worker.dtype,
            device=worker.device,
        )
        self._chain = LayerChain(model, worker.pools.draft)
        self._forward = MTPExtendForward(self._chain, self.state, tree_size=worker.spec.tree_size)
        table = mtp_table(worker, self._forward)
        self._extend = launcher(worker, self._forward, worker.attention.draft, parts.workspace, table)
        self.extend_runner = self._extend.runner
        numbers = torch.arange(-1, model.num_layers, device=worker.device)
        self._order = numbers[1:]
        self._parents = numbers[:-1] if model.num_layers > 1 else numbers[:0]

    def draft(self, rows: Tensor, state: MTPState, slots: Tensor, lens_cpu: tuple[int, ...]) -> DraftCandidates:
        """Read the chain that the last extend left. It is the tree: no draft KV is written before it is verified."""
        batch, vocab_size = rows.numel(), self._parts.vocab_size
        with grouped():
            maybe_detect_oob(state.bonus, 0, vocab_size, "draft.bonus")
            maybe_detect_oob(state.draft_tokens, 0, vocab_size, "mtp_draft.draft_tokens")
        return DraftCandidates(self._parents.expand(batch, -1), self._order.expand(batch, -1), state.draft_tokens)

    def extend(self, batch: SequenceLayout, compacted: Compacted, slots: Tensor) -> None:
        parts, forward = self._parts, self._forward
        with grouped():
            maybe_detect_oob(compacted.predict, 0, parts.vocab_size, "draft_extend.input_ids")
            maybe_detect_nan(compacted.features, "draft_extend.features")
        layout, rows = forward.layout(batch), batch.req_pool_indices
        locs = verify_cache_locs(parts.pools.req_to_token.table, rows, layout.seq_lens, forward.width)
        inputs = MTPExtendInputs(
            compacted.predict, compacted.features, locs, compacted.accept_lengths, rows, batch.seq_lens
        )
        outputs = self._extend.run(inputs, batch.seq_lens_cpu)
        parts.pools.draft.probe_written(locs)
        self.state.store_drafts(rows, outputs.draft_tokens, outputs.recent)

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        """As of any drafter. Some layers read drafts at the last positions of a chunk that ends less than N tokens
        before its prompt does; the next chunk goes over them again."""
        for request in batch.requests:
            prepare_cached_prefix(request, self._parts.pools.draft)
        spans = [_Span(one, start, chunk, self._unsettled(one, start)) for one, start, chunk in batch.chunks()]
        lens = tuple(span.rows for span in spans)
        with self._parts.observers.computing("prefill", batch.requests, lens):
            outputs = self._prefill(batch, spans, next_ids, features)
        self.state.store_drafts(batch.req_pool_indices, outputs.draft_tokens, outputs.recent)

    def _prefill(
        self, batch: PrefillBatch, spans: Sequence[_Span], next_ids: Tensor, features: Tensor
    ) -> MTPExtendOutputs:
        """Run all layers over the rows of ``spans``. Ids and hidden states are put together for the N - 1 positions
        before each chunk as well: some of them are rows, too, and the last N - 1 are kept."""
        parts, device, earlier = self._parts, self._parts.device, self._forward.earlier
        tail = self._tail_tokens(spans)
        tail[:, 0] = torch.where(tail[:, 0] < 0, next_ids, tail[:, 0])
        ends_cpu = list(accumulate(earlier + span.chunk for span in spans))
        ends = upload(ends_cpu, device)
        ids = self._known_ids(spans).index_copy_(0, ends - 1, tail[:, 0])
        stored = self.state.recent(batch.req_pool_indices).hidden_states
        chunks = torch.split(features, list(batch.extend_lens_cpu))
        hidden = torch.cat([part for pair in zip(stored, chunks, strict=True) for part in pair])

        at = upload([n for end, span in zip(ends_cpu, spans, strict=True) for n in range(end - span.rows, end)], device)
        positions = upload([position for span in spans for position in range(span.first, span.stop)], device)
        last = upload([span.rows for span in spans], device).cumsum(0) - 1
        following = torch.arange(1, positions.numel() + 1, device=device).index_copy_(0, last, last)
        table = parts.pools.req_to_token
        slots = torch.cat([table.slots(span.request.row, span.first, span.stop) for span in spans])
        metadata = parts.planner.extend(_layout(batch, spans), self._workspace)
        attention = parts.attention.draft.bind(metadata, parts.pools.draft, slots)
        rows = ChainRows(ids[at], positions, hidden[at], following, last)
        drafts = self._chain.run(rows, attention, ChainProbes(self._look_at_ids, _look_at_hidden, every_row=True), tail)
        parts.pools.draft.probe_written(slots)
        kept = ends.unsqueeze(1) + torch.arange(-earlier, 0, device=device)
        return MTPExtendOutputs(drafts, ids[kept], hidden[kept])

    def _unsettled(self, request: Request, length: int) -> int:
        """Positions before ``length``, of those computed in earlier chunks, at which some layer had to read a draft. A
        cached prefix ends before there are any."""
        return max(length - max(len(request.all_ids) - self.model.num_layers, 0), 0)

    def _known_ids(self, spans: Sequence[_Span]) -> Tensor:
        """The token after each position of a chunk and of the N - 1 before it, of all chunks: int64; 0 where there is
        no position, or no token yet."""
        found: list[int] = []
        for span in spans:
            ids = span.request.all_ids
            places = range(span.stop - span.chunk - self._forward.earlier + 1, span.stop + 1)
            found += [ids[place] if 0 < place < len(ids) else 0 for place in places]
        return upload(found, self._parts.device)

    def _tail_tokens(self, spans: Sequence[_Span]) -> Tensor:
        """The N tokens after each chunk, which layer by layer are read at its last position: the prompt's own, and -1
        behind its end. int64 [B, N]."""
        width = self.model.num_layers
        known = [span.request.all_ids[span.stop : span.stop + width] for span in spans]
        return upload([ids + [-1] * (width - len(ids)) for ids in known], self._parts.device)

    def _look_at_ids(self, ids: Tensor) -> None:
        maybe_detect_oob(ids, 0, self._parts.vocab_size, "draft_prefill.input_ids")


def _layout(batch: PrefillBatch, spans: Sequence[_Span]) -> ExtendLayout:
    """The lengths and rows for an attention plan."""
    device = batch.prefix_lens.device
    starts, lens = tuple(span.first for span in spans), tuple(span.rows for span in spans)
    return ExtendLayout(batch.req_pool_indices, upload(starts, device), upload(lens, device), starts, lens)


def _look_at_hidden(hidden: Tensor) -> None:
    maybe_detect_nan(hidden, "draft_prefill.hidden_states")


def _check_fit(parts: DrafterParts, model: MTPDraft) -> None:
    """Raise InvalidOption for a configuration that these layers cannot serve."""
    config, spec = parts.worker.config, parts.worker.spec
    if spec.num_steps != model.num_layers:
        raise InvalidOption(
            f"must be {model.num_layers}, one for each layer of {config.draft_model} (num_nextn_predict_layers), "
            f"got {spec.num_steps}",
            ("speculative", "num_steps"),
        )
    if config.context_length < model.num_layers:
        raise InvalidOption(f"must be at least {model.num_layers}, the number of draft layers", ("context_length",))

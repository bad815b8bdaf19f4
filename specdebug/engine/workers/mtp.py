"""Drafting with N next-n layers (multi-layer MTP): an extend leaves the whole next chain, so stage 1 only reads it.

Layer i at position p reads token p+1+i, so a slot is settled once N tokens follow it. At the last N - 1 positions of a
step some layers had to read drafts; the next step goes over them again: all layers run over the same T + N - 1 rows a
request, L-N+1 .. L+T-1, of which layer i needs the last T + i. From layer to layer the ids move up by one row, and at
the last accepted row what the layer before drafted moves in behind them. Source: SGLang ``MultiLayerEagleWorkerV2``,
whose layers grow by a row each instead.
"""

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
from specdebug.engine.graph.runner import EngineParts, GraphTable, StaticBuffer, StepForward, launcher
from specdebug.engine.graph.tables import IDS, ids
from specdebug.engine.kernels.cache_locs import verify_cache_locs
from specdebug.engine.kernels.kv_cache import mtp_rows
from specdebug.engine.kernels.logits import argmax
from specdebug.engine.memory.kv_pool import KVPool
from specdebug.engine.model.interface import LayerAttention
from specdebug.engine.model.models import MTPDraft
from specdebug.engine.textbook.attention.planner import (
    AttentionPlanner,
    ExtendLayout,
    Metadata,
    SequenceLayout,
    Workspace,
)
from specdebug.engine.textbook.request import PrefillBatch, Request
from specdebug.engine.textbook.speculative.accept import Compacted
from specdebug.engine.textbook.speculative.draft import StateTable, StepState
from specdebug.engine.textbook.speculative.eagle import prepare_cached_prefix
from specdebug.engine.textbook.speculative.tree import DraftCandidates
from specdebug.engine.workers.protocol import DrafterParts
from specdebug.events import Forward


@dataclass(frozen=True)
class MTPState(StepState):
    """draft_tokens: int64 [B, N], the drafts of the next step, one of each layer. topk_p, topk_index: there is nothing
    left to choose from.

    next_ids, hidden_states: of the last N - 1 positions with target KV, L-N+1 .. L-1, which the next extend goes over
    once more (some layers have read drafts there), the token after each, int64 [B, N-1], and the target's hidden state,
    [B, N-1, H]. Entries of positions before the first mean nothing.
    """

    draft_tokens: Tensor
    next_ids: Tensor
    hidden_states: Tensor
    topk_p: None = None
    topk_index: None = None


def mtp_states(model: MTPDraft, rows: int, dtype: torch.dtype, device: torch.device) -> StateTable[MTPState]:
    """The state table of these layers for so many rows."""
    layers, earlier = model.num_layers, model.num_layers - 1
    columns = ((layers,), torch.int64), ((earlier,), torch.int64), ((earlier, model.hidden_size), dtype)
    return StateTable(MTPState, rows, device, *columns)


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
    [B, N-1, H], as ``MTPState`` has them."""

    draft_tokens: Tensor
    next_ids: Tensor
    hidden_states: Tensor


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


def run_chain(
    model: MTPDraft, rows: ChainRows, attention: LayerAttention, probes: ChainProbes, tail: Tensor | None = None
) -> Tensor:
    """Run all layers over the same rows: each writes its own draft KV, and drafts one token. The best draft of each
    behind the last rows: int64 [B, N]. Attention reaches every row, the MLP those whose output is read.

    tail: int64 [B, N], the token that layer i reads at the last row, where one is known, else -1.
    """
    ids, hidden = rows.next_ids, rows.hidden_states
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
    """Stage 6: all layers over the accepted tokens and the N - 1 positions before them."""

    name: Forward = "draft_extend"

    def __init__(self, model: MTPDraft, pool: KVPool, state: StateTable[MTPState], *, tree_size: int) -> None:
        self.model, self.pool, self._state = model, pool, state
        self.tree_size = tree_size
        self.earlier = model.num_layers - 1
        self.width = tree_size + self.earlier
        vocab_size = model.vocab_size
        self._probes = ChainProbes(
            lambda ids: maybe_detect_oob(ids, 0, vocab_size, "mtp_extend.input_ids"),
            lambda hidden: maybe_detect_nan(hidden, "mtp_extend.hidden_states"),
            every_row=False,
        )
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
        _, recent_ids, recent_hidden = self._state.columns
        found = mtp_rows(
            inputs.input_ids,
            inputs.features,
            recent_ids,
            recent_hidden,
            inputs.req_pool_indices,
            inputs.seq_lens,
            inputs.accept_lengths,
        )
        following = self._following_of(inputs.seq_lens.numel(), inputs.seq_lens.device)
        rows = ChainRows(found.next_ids, found.positions, found.hidden_states, following, found.last)
        drafts = run_chain(self.model, rows, attentions[0], self._probes)
        return MTPExtendOutputs(drafts, found.kept_ids, found.kept_hidden)

    def _following_of(self, batch: int, device: torch.device) -> Tensor:
        """``ChainRows.following``, which no length changes: made once, for graphs read it where it lies."""
        if batch not in self._following:
            number = torch.arange(batch * self.width, device=device).view(batch, -1)
            self._following[batch] = torch.minimum(number + 1, number[:, -1:]).view(-1)
        return self._following[batch]


def mtp_table(parts: EngineParts, forward: MTPExtendForward) -> GraphTable[MTPExtendInputs, MTPExtendOutputs]:
    """The static buffers of the extend. A padded row accepts all T of its zeros and reads the padding row."""
    model, nodes, earlier = forward.model, forward.tree_size, forward.earlier

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
            *ids(nodes, "input_ids"),
            StaticBuffer("features", nodes, (model.target_feature_size,), parts.dtype),
            *ids(forward.width, "out_cache_loc"),
            *ids(1, "accept_lengths", "req_pool_indices", "seq_lens"),
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
    """Positions [first, stop) of a request that all layers go over: a prompt chunk from ``start``, and before it those
    that they go over once more."""

    request: Request
    first: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.first


class MTPDrafter:
    """The ``Drafter`` of next-n layers: it owns their state, the extend's runner and the draft pool's content.

    Raises InvalidOption if the step is not as long as there are layers.
    """

    draft_runner = None

    def __init__(self, parts: DrafterParts) -> None:
        worker, spec, config = parts.worker, parts.worker.spec, parts.worker.config
        self.model = model = cast(MTPDraft, worker.draft)  # the loader of this algorithm made it
        if spec.num_steps != model.num_layers:
            layers = f"{model.num_layers}, one for each layer of {config.draft_model} (num_nextn_predict_layers)"
            raise InvalidOption(f"must be {layers}, got {spec.num_steps}", ("speculative", "num_steps"))
        if config.context_length < model.num_layers:
            short = f"must be at least {model.num_layers}, the number of draft layers"
            raise InvalidOption(short, ("context_length",))
        self._parts, self._pool, self._workspace = worker, worker.draft_pool, parts.workspace
        self.state = mtp_states(model, config.max_running_requests, worker.dtype, worker.device)
        self._forward = MTPExtendForward(model, self._pool, self.state, tree_size=spec.tree_size)
        table = mtp_table(worker, self._forward)
        self._extend = launcher(worker, self._forward, worker.draft_attention, parts.workspace, table)
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
        forward, rows = self._forward, batch.req_pool_indices
        with grouped():
            maybe_detect_oob(compacted.predict, 0, self._parts.vocab_size, "draft_extend.input_ids")
            maybe_detect_nan(compacted.features, "draft_extend.features")
        starts = forward.layout(batch).seq_lens
        locs = verify_cache_locs(self._parts.req_to_token.table, rows, starts, forward.width)
        inputs = MTPExtendInputs(
            compacted.predict, compacted.features, locs, compacted.accept_lengths, rows, batch.seq_lens
        )
        outputs = self._extend.run(inputs, batch.seq_lens_cpu)
        self._pool.probe_written(locs)
        self._keep(rows, outputs)

    def prefill(self, batch: PrefillBatch, next_ids: Tensor, features: Tensor) -> None:
        """As of any drafter. Some layers read drafts at the last positions of a chunk that ends less than N tokens
        before its prompt does; the next chunk goes over them again."""
        for request in batch.requests:
            prepare_cached_prefix(request, self._pool)
        spans = [
            _Span(one, start - self._unsettled(one, start), start, start + chunk)
            for one, start, chunk in batch.chunks()
        ]
        with self._parts.observers.computing("prefill", batch.requests, tuple(span.rows for span in spans)):
            outputs = self._prefill(batch, spans, next_ids, features)
        self._keep(batch.req_pool_indices, outputs)

    def _prefill(
        self, batch: PrefillBatch, spans: Sequence[_Span], next_ids: Tensor, features: Tensor
    ) -> MTPExtendOutputs:
        """Run all layers over the rows of ``spans``. Ids and hidden states are put together for the N - 1 positions
        before each chunk as well: some of them are rows, too, and the last N - 1 are kept."""
        parts, device, earlier = self._parts, self._parts.device, self._forward.earlier
        tail = self._tail_tokens(spans)
        tail[:, 0] = torch.where(tail[:, 0] < 0, next_ids, tail[:, 0])
        ends_cpu = list(accumulate(earlier + length for length in batch.extend_lens_cpu))
        ends = upload(ends_cpu, device)
        ids = self._known_ids(spans).index_copy_(0, ends - 1, tail[:, 0])
        stored = self.state.read(batch.req_pool_indices).hidden_states
        chunks = torch.split(features, list(batch.extend_lens_cpu))
        hidden = torch.cat([part for pair in zip(stored, chunks, strict=True) for part in pair])

        at = upload([n for end, span in zip(ends_cpu, spans, strict=True) for n in range(end - span.rows, end)], device)
        positions = upload([position for span in spans for position in range(span.first, span.stop)], device)
        starts, lens = tuple(span.first for span in spans), tuple(span.rows for span in spans)
        layout = ExtendLayout(batch.req_pool_indices, upload(starts, device), upload(lens, device), starts, lens)
        last = layout.extend_lens.cumsum(0) - 1
        following = torch.arange(1, positions.numel() + 1, device=device).index_copy_(0, last, last)
        table = parts.req_to_token
        slots = torch.cat([table.slots(span.request.row, span.first, span.stop) for span in spans])
        attention = parts.draft_attention.bind(parts.planner.extend(layout, self._workspace), self._pool, slots)
        probes = ChainProbes(
            lambda ids: maybe_detect_oob(ids, 0, parts.vocab_size, "draft_prefill.input_ids"),
            lambda hidden: maybe_detect_nan(hidden, "draft_prefill.hidden_states"),
            every_row=True,
        )
        drafts = run_chain(
            self.model, ChainRows(ids[at], positions, hidden[at], following, last), attention, probes, tail
        )
        self._pool.probe_written(slots)
        kept = ends.unsqueeze(1) + torch.arange(-earlier, 0, device=device)
        return MTPExtendOutputs(drafts, ids[kept], hidden[kept])

    def _keep(self, rows: Tensor, outputs: MTPExtendOutputs) -> None:
        self.state.store(rows, outputs.draft_tokens, outputs.next_ids, outputs.hidden_states)

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
            places = range(span.start - self._forward.earlier + 1, span.stop + 1)
            found += [ids[place] if 0 < place < len(ids) else 0 for place in places]
        return upload(found, self._parts.device)

    def _tail_tokens(self, spans: Sequence[_Span]) -> Tensor:
        """The N tokens after each chunk, which layer by layer are read at its last position: the prompt's own, and -1
        behind its end. int64 [B, N]."""
        width = self.model.num_layers
        known = [span.request.all_ids[span.stop : span.stop + width] for span in spans]
        return upload([ids + [-1] * (width - len(ids)) for ids in known], self._parts.device)

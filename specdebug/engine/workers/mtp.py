"""Drafting with N next-n layers (multi-layer MTP): an extend leaves the whole next chain, so stage 1 only reads it.

Draft KV of layer i in slot p is a function of (token p+1+i, target hidden p; or of all tokens up to there, if layers
are chained), so a slot is settled once N tokens follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, cast

import torch
from torch import Tensor

from specdebug.async_probe import grouped, maybe_detect_nan, maybe_detect_oob
from specdebug.base.errors import InvalidOption
from specdebug.engine.device import upload
from specdebug.engine.graph.runner import launcher
from specdebug.engine.kernels.cache_locs import verify_cache_locs
from specdebug.engine.model.mtp import MTPDraft
from specdebug.engine.textbook.attention.planner import ExtendLayout, SequenceLayout
from specdebug.engine.textbook.batch import PrefillBatch
from specdebug.engine.textbook.request import Request
from specdebug.engine.textbook.speculative.commit import Compacted
from specdebug.engine.textbook.speculative.eagle import prepare_cached_prefix
from specdebug.engine.textbook.speculative.tree import DraftCandidates
from specdebug.engine.workers.drafter import DrafterParts
from specdebug.engine.workers.mtp_extend import (
    ChainProbes,
    ChainRows,
    LayerChain,
    MTPExtendForward,
    MTPExtendInputs,
    MTPExtendOutputs,
    mtp_table,
)
from specdebug.engine.workers.mtp_state import MTPState, MTPStateTable


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

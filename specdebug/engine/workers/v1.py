"""The first EAGLE worker: the same stages, and no slot that is held in reserve.

A step takes slots to draft into and gives them back, takes slots for its verify, and frees those of rejected nodes
before it ends. So the host must know what was accepted before the step can go on: nothing is begun ahead, a request
that ends keeps no KV beyond its last token, and the extend computes accepted tokens and nothing else.

Upstream leaves requests that end out of the extend. Here they are extended, too: the cache keeps what they have
committed, and a request that hits that relies on its draft KV.

Source: SGLang ``EAGLEWorker`` and ``EagleVerifyInput`` (0.5.9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdebug.engine.device import upload
from specdebug.engine.kernels.cache_locs import verify_cache_locs
from specdebug.engine.textbook.attention.planner import ExtendLayout, SequenceLayout
from specdebug.engine.textbook.request import Request
from specdebug.engine.textbook.speculative.accept import Acceptance, accept
from specdebug.engine.textbook.speculative.commit import commit_kv, compact_accepted
from specdebug.engine.textbook.speculative.worker import StagedWorker, bonus_of, read_back
from specdebug.engine.workers.drafter import AcceptedRows, SlotDrafter
from specdebug.engine.workers.protocol import WorkerParts
from specdebug.engine.workers.step_slots import StepSlots, Taken
from specdebug.events import StageEntered


class EagleWorkerV1(StagedWorker[SlotDrafter[Any]]):
    """SGLang's first worker: it allocates in each step, and the host waits for what was accepted."""

    ragged_extend = True

    def __init__(self, parts: WorkerParts) -> None:
        super().__init__(parts)
        self._slots = StepSlots(parts)

    def decode(self, requests: Sequence[Request]) -> list[list[int]]:
        """One iteration; the tokens each request gained, at least one. One that ends may keep fewer."""
        spec, observers, config = self._parts.spec, self._parts.observers, self._parts.config
        lens_cpu = tuple(request.kv_len for request in requests)
        rows = self._rows_of(requests)

        observers.tell(StageEntered, "draft")
        state = self.state.gather(rows)
        with self._slots.draft(requests, rows, state.seq_lens) as locs:
            candidates = self.drafter.draft_into(rows, state, locs, lens_cpu)

        observers.tell(StageEntered, "tree")
        tree = self._tree_builder.build(candidates, state.bonus, state.seq_lens)

        observers.tell(StageEntered, "verify")
        batch = SequenceLayout(rows, state.seq_lens, lens_cpu)
        taken = self._slots.take(requests, rows, state.seq_lens)
        prepared = self._verify.prepare(tree, rows, state.seq_lens, taken.out_cache_loc, lens_cpu, slack=0)
        verified = self._verify.run(prepared, lens_cpu)

        observers.tell(StageEntered, "accept")
        acceptance = accept(requests, tree, verified.logits, spec, config.seed)
        acceptance.probe_indices(spec.tree_size, self._parts.vocab_size)
        self._tell_observers(requests, tree, verified.logits, acceptance)

        observers.tell(StageEntered, "commit")
        compacted = compact_accepted(acceptance, verified.features, spec)
        told = read_back(compacted, acceptance.accept_index).wait()
        tokens = [row[1 : row[0] + 1] for row in told]
        kept = [request.count_kept(found) for request, found in zip(requests, tokens, strict=True)]
        self._commit(requests, rows, taken, acceptance, told, kept)
        accepted = self._accepted_rows(batch, kept)
        lengths = accepted.layout.extend_lens
        self.state.store_lengths(rows, state.seq_lens + lengths, bonus_of(compacted, lengths))

        observers.tell(StageEntered, "extend")
        self.drafter.extend_accepted(compacted, accepted)
        return tokens

    def _commit(
        self,
        requests: Sequence[Request],
        rows: Tensor,
        taken: Taken,
        acceptance: Acceptance,
        told: Sequence[Sequence[int]],
        kept: Sequence[int],
    ) -> None:
        """Make the first ``kept`` accepted nodes of each request the cells from L on, and free the rest.

        Of single slots the rows are rewritten and no KV moves. Pages are freed whole, so in a larger page accepted KV
        has to be in front, as that of a chain is. ``told``: the rows of :func:`read_back`, with ``accept_index``.
        """
        spec = self._parts.spec
        if self._parts.config.page_size == 1:
            index = [row[1 + spec.tree_size :] for row in told]
            nodes = [[node - b * spec.tree_size for node in index[b][:count]] for b, count in enumerate(kept)]
            self._slots.keep_nodes(requests, rows, taken, nodes)
            return
        if any(count < row[0] for count, row in zip(kept, told, strict=True)):
            acceptance = truncate(acceptance, upload(kept, self._parts.device))
        commit_kv(acceptance, taken.out_cache_loc, spec, self._parts.pools.target, self._scratch)
        self._slots.keep_pages(requests, taken, kept)

    def _accepted_rows(self, batch: SequenceLayout, kept: Sequence[int]) -> AcceptedRows:
        """The rows to extend over, once the rows of ``req_to_token`` have their slots. ``batch``: lengths before."""
        nodes = self._parts.spec.tree_size
        front = [b * nodes + rank for b, count in enumerate(kept) for rank in range(count)]
        positions = [
            length + rank for length, count in zip(batch.seq_lens_cpu, kept, strict=True) for rank in range(count)
        ]
        last = [end - 1 for end in accumulate(kept)]
        there = upload(np.array([*front, *positions, *last, *kept]), self._parts.device)
        at, where, rest = there[: len(front)], there[len(front) : 2 * len(front)], there[2 * len(front) :]
        ends, lengths = rest.view(2, -1)
        table = self._parts.pools.req_to_token.table
        slots = verify_cache_locs(table, batch.req_pool_indices, batch.seq_lens, nodes).index_select(0, at)
        layout = ExtendLayout(batch.req_pool_indices, batch.seq_lens, lengths, batch.seq_lens_cpu, tuple(kept))
        return AcceptedRows(layout, at, where, slots, ends)


def truncate(acceptance: Acceptance, lengths: Tensor) -> Acceptance:
    """Accept no more than the first ``lengths`` (int64 [B], at least 1) nodes of each request."""
    rank = torch.arange(acceptance.accept_index.shape[1], device=lengths.device)
    first = torch.where(rank < lengths.unsqueeze(1), acceptance.accept_index, -1)
    return replace(acceptance, accept_index=first, num_correct_drafts=(lengths - 1).to(torch.int32))

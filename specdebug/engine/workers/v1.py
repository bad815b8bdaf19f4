"""The first EAGLE worker: the same stages, and no slot that is held in reserve.

A step takes slots to draft into and gives them back, takes slots for its verify, and frees those of rejected nodes
before it ends. So the host must know what was accepted before the step can go on, and the extend computes accepted
tokens alone. Upstream leaves requests that end out of the extend; here they are extended, too, because a request that
hits what they leave relies on its draft KV. Source: SGLang ``EAGLEWorker`` and ``EagleVerifyInput`` (0.5.9).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_oob
from specdebug.engine.config import round_up
from specdebug.engine.device import upload
from specdebug.engine.errors import EngineError
from specdebug.engine.kernels.cache_locs import (
    DraftCacheLocs,
    assign_draft_cache_locs_v1,
    verify_cache_locs,
    write_slots,
)
from specdebug.engine.textbook.attention.planner import ExtendLayout, SequenceLayout
from specdebug.engine.textbook.request import Request
from specdebug.engine.textbook.scheduler import Reservation
from specdebug.engine.textbook.speculative.accept import Acceptance, commit_kv, compact_accepted
from specdebug.engine.textbook.speculative.worker import StagedWorker, bonus_of, read_back
from specdebug.engine.workers.protocol import AcceptedRows, SlotDrafter, WorkerParts
from specdebug.events import StageEntered


@dataclass(frozen=True)
class Taken:
    """Slots taken for a verify. out_cache_loc: int64 [B·T], cells [L, L + T) of each request. fresh: int64 on the host,
    by request, those that it did not hold before: whole pages for cells from ``held`` on."""

    out_cache_loc: Tensor
    fresh: tuple[Tensor, ...]
    held: tuple[int, ...]


class StepSlots:
    """Slots that a step takes: some to draft into, which are given back, and some for its verify. There are always
    enough (``Reservation``). Takes for one batch at a time, and keeps its requests' ``kv_allocated``."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._page = parts.config.page_size
        self._reservation = Reservation(parts.config)

    @contextmanager
    def draft(self, requests: Sequence[Request], rows: Tensor, seq_lens: Tensor) -> Iterator[DraftCacheLocs]:
        """Slots to draft into, which are free again afterwards; the rows still name them beyond L, and what reads
        them there reads what is no longer the request's. rows, seq_lens: int64 [B]."""
        parts, spec = self._parts, self._parts.spec
        counts = self._lacking(requests, [self._reservation.draft_end(each.kv_len) for each in requests])
        with parts.memory.borrow_to_draft(sum(counts)) as fresh:
            held, offsets, slots = self._upload([each.kv_allocated for each in requests], counts, fresh)
            yield assign_draft_cache_locs_v1(
                parts.req_to_token.table,
                rows,
                seq_lens,
                held,
                offsets,
                slots,
                topk=spec.eagle_topk,
                num_steps=spec.num_steps,
                page_size=self._page,
            )

    def take(self, requests: Sequence[Request], rows: Tensor, seq_lens: Tensor) -> Taken:
        """Slots for a verify, from now on the requests' own. rows, seq_lens: int64 [B]. Raises EngineError without
        enough."""
        parts, held = self._parts, tuple(each.kv_allocated for each in requests)
        counts = self._lacking(requests, [self._reservation.verify_end(each.kv_len) for each in requests])
        fresh = parts.memory.alloc(sum(counts))
        if fresh is None:
            free = parts.memory.allocator.num_free
            raise EngineError(f"a verify needs {sum(counts)} KV slots and {free} are free")
        for request, count in zip(requests, counts, strict=True):
            request.kv_allocated += count
        self._write(rows, list(held), counts, fresh)
        table = parts.req_to_token.table
        out_cache_loc = verify_cache_locs(table, rows, seq_lens, parts.spec.tree_size)
        maybe_detect_oob(out_cache_loc, 0, parts.memory.target.size, "verify.out_cache_loc")
        return Taken(out_cache_loc, torch.split(fresh, counts), held)

    def keep_nodes(
        self, requests: Sequence[Request], rows: Tensor, taken: Taken, nodes: Sequence[Sequence[int]]
    ) -> None:
        """Pages of one slot: keep the slots of these nodes, whose KV stays where it is, and free all others."""
        evicted = [np.ones(fresh.numel(), dtype=np.bool_) for fresh in taken.fresh]
        for mask, accepted in zip(evicted, nodes, strict=True):
            mask[list(accepted)] = False
        kept = torch.cat([fresh[list(accepted)] for fresh, accepted in zip(taken.fresh, nodes, strict=True)])
        self._write(rows, list(taken.held), [len(accepted) for accepted in nodes], kept)
        self._free(requests, taken, evicted)

    def keep_pages(self, requests: Sequence[Request], taken: Taken, lengths: Sequence[int]) -> None:
        """Larger pages, when the KV of ``lengths`` accepted tokens lies in front: free the pages that hold none of it.
        The page in which it ends stays whole."""
        ends = [round_up(each.kv_len + length, self._page) for each, length in zip(requests, lengths, strict=True)]
        evicted = [
            np.arange(held, held + fresh.numel()) >= end
            for held, fresh, end in zip(taken.held, taken.fresh, ends, strict=True)
        ]
        self._free(requests, taken, evicted)

    def _free(self, requests: Sequence[Request], taken: Taken, evicted: Sequence[np.ndarray]) -> None:
        """Free what these masks (bool, one for each of ``fresh``) say of each request."""
        for request, mask in zip(requests, evicted, strict=True):
            request.kv_allocated -= int(mask.sum())
        self._parts.memory.free(torch.cat(taken.fresh)[torch.from_numpy(np.concatenate(evicted))])

    def _lacking(self, requests: Sequence[Request], ends: Sequence[int]) -> list[int]:
        """Slots, in whole pages, that each request needs for cells up to these ends."""
        whole = [round_up(end, self._page) for end in ends]
        return [max(end - each.kv_allocated, 0) for each, end in zip(requests, whole, strict=True)]

    def _write(self, rows: Tensor, firsts: list[int], counts: list[int], slots: Tensor) -> None:
        """Store slots (int64, on the host), as many for each request as ``counts`` says, from cell ``firsts`` on."""
        if slots.numel():
            write_slots(self._parts.req_to_token.table, rows, *self._upload(firsts, counts, slots))

    def _upload(self, firsts: list[int], counts: list[int], slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``firsts`` [B], where the slots of each begin [B + 1], and the slots: int64 on the device, by one copy."""
        offsets = np.cumsum([0, *counts])
        there = upload(np.concatenate([np.array(firsts), offsets, slots.numpy()]), self._parts.device)
        size = len(firsts)
        return there[:size], there[size : 2 * size + 1], there[2 * size + 1 :]


class EagleWorkerV1(StagedWorker[SlotDrafter[Any]]):
    """SGLang's first worker: it allocates in each step, and the host waits for what was accepted."""

    ragged_extend = True

    def __init__(self, parts: WorkerParts) -> None:
        super().__init__(parts)
        self._slots = StepSlots(parts)

    def decode(self, requests: Sequence[Request]) -> list[list[int]]:
        """One iteration; the tokens each request gained, at least one. One that ends may keep fewer."""
        spec, observers = self._parts.spec, self._parts.observers
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

        acceptance = self._accept(requests, tree, verified.logits)

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
        """Make the first ``kept`` accepted nodes of each request the cells from L on, and free the rest. Of single
        slots the rows are rewritten and no KV moves; in pages accepted KV has to be in front. ``told``: of
        :func:`read_back`."""
        spec = self._parts.spec
        if self._parts.config.page_size == 1:
            index = [row[1 + spec.tree_size :] for row in told]
            nodes = [[node - b * spec.tree_size for node in index[b][:count]] for b, count in enumerate(kept)]
            self._slots.keep_nodes(requests, rows, taken, nodes)
            return
        if any(count < row[0] for count, row in zip(kept, told, strict=True)):
            acceptance = truncate(acceptance, upload(kept, self._parts.device))
        commit_kv(acceptance, taken.out_cache_loc, spec, self._parts.memory.target, self._scratch)
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
        table = self._parts.req_to_token.table
        slots = verify_cache_locs(table, batch.req_pool_indices, batch.seq_lens, nodes).index_select(0, at)
        layout = ExtendLayout(batch.req_pool_indices, batch.seq_lens, lengths, batch.seq_lens_cpu, tuple(kept))
        return AcceptedRows(layout, at, where, slots, ends)


def truncate(acceptance: Acceptance, lengths: Tensor) -> Acceptance:
    """Accept no more than the first ``lengths`` (int64 [B], at least 1) nodes of each request."""
    rank = torch.arange(acceptance.accept_index.shape[1], device=lengths.device)
    first = torch.where(rank < lengths.unsqueeze(1), acceptance.accept_index, -1)
    return replace(acceptance, accept_index=first, num_correct_drafts=(lengths - 1).to(torch.int32))

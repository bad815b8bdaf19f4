"""The slots that a step of the worker v1 takes: some to draft into, which are given back, and some for its verify, of
which it keeps those of accepted tokens.

The scheduler has as many free when a step begins (``reservation.py``), so there are always enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdebug.async_probe import maybe_detect_oob
from specdebug.engine.config import round_up
from specdebug.engine.device import upload
from specdebug.engine.errors import EngineError
from specdebug.engine.kernels.cache_locs import DraftCacheLocs, verify_cache_locs
from specdebug.engine.kernels.cache_locs_v1 import assign_draft_cache_locs_v1, write_slots
from specdebug.engine.textbook.request import Request
from specdebug.engine.textbook.reservation import StepReservation
from specdebug.engine.workers.protocol import WorkerParts


@dataclass(frozen=True)
class Taken:
    """Slots taken for a verify. out_cache_loc: int64 [B·T], cells [L, L + T) of each request. fresh: int64 on the host,
    by request, those that it did not hold before: whole pages for cells from ``held`` on."""

    out_cache_loc: Tensor
    fresh: tuple[Tensor, ...]
    held: tuple[int, ...]


class StepSlots:
    """Takes slots for one batch at a time, and keeps its requests' ``kv_allocated``."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._page = parts.config.page_size
        self._reservation = StepReservation(parts.config)

    @contextmanager
    def draft(self, requests: Sequence[Request], rows: Tensor, seq_lens: Tensor) -> Iterator[DraftCacheLocs]:
        """Slots to draft into, which are free again afterwards; the rows still name them beyond L, and what reads
        them there reads what is no longer the request's. rows, seq_lens: int64 [B]."""
        parts, spec = self._parts, self._parts.spec
        counts = self._lacking(requests, [self._reservation.draft_end(each.kv_len) for each in requests])
        with parts.memory.borrow_to_draft(sum(counts)) as fresh:
            held, offsets, slots = self._upload([each.kv_allocated for each in requests], counts, fresh)
            yield assign_draft_cache_locs_v1(
                parts.pools.req_to_token.table,
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
        """Slots for a verify, from now on the requests' own. rows, seq_lens: int64 [B].

        Raises EngineError when there are not enough, which the scheduler must not let happen.
        """
        parts, held = self._parts, tuple(each.kv_allocated for each in requests)
        counts = self._lacking(requests, [self._reservation.verify_end(each.kv_len) for each in requests])
        fresh = parts.memory.alloc(sum(counts))
        if fresh is None:
            free = parts.memory.allocator.num_free
            raise EngineError(f"a verify needs {sum(counts)} KV slots and {free} are free")
        for request, count in zip(requests, counts, strict=True):
            request.kv_allocated += count
        self._write(rows, list(held), counts, fresh)
        table = parts.pools.req_to_token.table
        out_cache_loc = verify_cache_locs(table, rows, seq_lens, parts.spec.tree_size)
        maybe_detect_oob(out_cache_loc, 0, parts.pools.target.size, "verify.out_cache_loc")
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
            write_slots(self._parts.pools.req_to_token.table, rows, *self._upload(firsts, counts, slots))

    def _upload(self, firsts: list[int], counts: list[int], slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``firsts`` [B], where the slots of each begin [B + 1], and the slots: int64 on the device, by one copy."""
        offsets = np.cumsum([0, *counts])
        there = upload(np.concatenate([np.array(firsts), offsets, slots.numpy()]), self._parts.device)
        size = len(firsts)
        return there[:size], there[size : 2 * size + 1], there[2 * size + 1 :]

"""Recurrent layers of SGLang's models: who owns the slots of their states, and what a verify leaves in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from specdebug import async_probe
from specdebug.targets.inside.guard import Call, Tap, after
from specdebug.targets.sglang.inside.blocks import FORWARD, NGRAM_SAMPLE, imported
from specdebug.targets.sglang.inside.seats import Seat

RECURRENT = "recurrent states"
_SAMPLE = Seat(RECURRENT, ("srt.speculative.eagle_worker_common:eagle_sample",))


class StateProbes:
    """Holds the state that a request goes on from behind a verify against the one that the verify computed behind its
    last accepted node, to the bit: that is copied. A row of ``req_to_token`` stands for its request."""

    def __init__(self) -> None:
        self._due: dict[int, Tensor] = {}

    def taps(self) -> Iterator[tuple[Any, str, Tap]]:
        """Where this process's workers are tapped; nowhere if none of them is. Raises NoSeat."""
        found = [(*seat.find(), self.accepted) for seat in (_SAMPLE, NGRAM_SAMPLE) if imported(seat)]
        if found:
            yield *FORWARD.find(), self.forward
        yield from found

    @after(bound=1)
    def accepted(self, answer: Any, verify: Any, batch: Any, *args: Any, **named: Any) -> None:
        pool = getattr(batch.req_to_token_pool, "mamba_pool", None)
        kept = None if pool is None else getattr(pool.mamba_cache, "intermediate_ssm", None)
        if kept is None or not async_probe.live() or batch.forward_mode.is_idle():
            return
        _, accept_lens, accept_index = answer
        last = accept_index.gather(1, (accept_lens - 1).long().unsqueeze(1)).squeeze(1).tolist()
        for place, row in enumerate(batch.req_pool_indices.tolist()):
            self._due[row] = kept[:, place, last[place] - place * verify.draft_token_num].clone()

    def forward(self, call: Call, runner: Any, batch: Any, *args: Any, **named: Any) -> Any:
        slots, mode = runner.req_to_token_pool, batch.forward_mode
        if not runner.is_draft_worker and hasattr(slots, "mamba_pool") and async_probe.live():
            due = [self._due.pop(row, None) for row in batch.req_pool_indices.tolist()]
            if mode.is_target_verify():
                there = slots.mamba_pool.mamba_cache.temporal
                own = (there[:, slot] for slot in slots.get_mamba_indices(batch.req_pool_indices).tolist())
                other = [state is not None and not _same(state, now) for now, state in zip(own, due, strict=True)]
                async_probe.maybe_detect_oob(torch.tensor(other).long(), 0, 1, "commit.state")
        return call(batch, *args, **named)


def _same(state: Tensor, now: Tensor) -> bool:
    return torch.equal(state.to(now.dtype), now)


def violated_states(pool: Any, requests: Sequence[Any], tree: Any) -> Iterator[str]:
    """The laws that do not hold, each ``states: what``: every slot of the pool of recurrent states is free, one
    request's, or the tree's. ``requests``: all that may hold one. Slot 0 is for padding."""
    if (allocator := getattr(pool, "mamba_allocator", None)) is None or not hasattr(tree, "all_mamba_values_flatten"):
        return
    parts = [("free", allocator.free_slots.tolist()), ("cached", tree.all_mamba_values_flatten().tolist())]
    for each in requests:
        if (kv := each.kv) is not None and kv.mamba_pool_idx is not None:
            kept = () if kv.mamba_ping_pong_track_buffer is None else kv.mamba_ping_pong_track_buffer.tolist()
            empty = kv.mamba_ping_pong_empty or ()
            own = [slot for slot, gone in zip(kept, empty, strict=False) if not gone]
            parts.append((each.rid, [int(kv.mamba_pool_idx), *own]))
    owners: dict[int, list[str]] = {slot: [] for slot in range(1, allocator.size + 1)}
    for label, slots in parts:
        for slot in slots:
            owners.setdefault(slot, []).append(label)
    for slot, who in owners.items():
        if len(who) > 1:
            yield f"states: slot {slot} of recurrent states is {' and '.join(who)}"
    lost = [slot for slot, who in owners.items() if not who]
    if lost:
        yield f"states: {len(lost)} slots of recurrent states have no owner (first: {lost[0]})"

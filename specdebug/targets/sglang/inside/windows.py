"""The laws of SGLang's other pools. Layers with a sliding window keep keys and values of the last positions alone, in
slots of their own, to which a map leads from the slots of all other layers. Recurrent layers keep states, in slots of
requests and of the tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

MAP = "full_to_swa_index_mapping"


def full_pool(allocator: Any) -> Any:
    """The allocator of the slots that requests and tree hold: of two pools that of full attention, else itself."""
    return allocator.full_attn_allocator if hasattr(allocator, MAP) else allocator


def violated_windows(
    allocator: Any, free: Tensor, free_in_window: Tensor, rows: Sequence[tuple[str, Tensor]], window: int
) -> Iterator[str]:
    """The laws that do not hold, each ``windows: what``. ``free``, ``free_in_window``: free pages of both pools.
    ``rows``: of each request the slots of its positions with keys and values. ``window``: positions before a query's
    own that it sees."""
    page, pool = allocator.page_size, allocator.swa_attn_allocator
    leads = getattr(allocator, MAP)[:-1].cpu()
    slots = (free.unsqueeze(1) * page + torch.arange(page)).flatten()
    kept = slots[leads[slots] > 0]
    if kept.numel():
        slot = int(kept[0])
        yield f"windows: slot {slot} is free, and keeps slot {int(leads[slot])} of the layers with a window"
    taken = leads[leads > 0]
    twice = (torch.bincount(taken) > 1).nonzero().flatten()
    if twice.numel():
        owners = (leads == twice[0]).nonzero().flatten().tolist()
        yield f"windows: slot {int(twice[0])} of the layers with a window is that of slots {owners[0]} and {owners[1]}"
    owned = torch.bincount(free_in_window, minlength=pool.size // page + 1)
    owned += torch.bincount(torch.unique(taken // page), minlength=owned.numel())
    for count, what in ((owned[1:] > 1, "more than one owner"), (owned[1:] == 0, "no owner")):
        if count.any():
            first = int(count.nonzero()[0]) + 1
            yield f"windows: {int(count.sum())} pages of the layers with a window have {what} (first: {first})"
    for rid, cells in rows:
        seen = cells[max(cells.numel() - window, 0) :]
        gone = (leads[seen] <= 0).nonzero()
        if gone.numel():
            at = cells.numel() - seen.numel() + int(gone[0])
            yield f"windows: {rid} position {at} of {cells.numel()} is within the window, and its slot was taken away"


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

"""The laws of SGLang's second pool: layers with a sliding window keep keys and values of the last positions alone, in
slots of their own, to which a map leads from the slots of all other layers."""

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

"""The check of guard regions, made on the device."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _look(memory, starts, stops, seen, pattern, BLOCK: tl.constexpr):
    region = tl.program_id(0)
    start = tl.load(starts + region)
    size = tl.load(stops + region) - start
    offset = tl.arange(0, BLOCK)
    inside = offset < size
    byte = tl.load(memory + start + offset, mask=inside, other=0).to(tl.int32)
    bad = inside & (byte != pattern)
    count = tl.sum(bad.to(tl.int64), 0)
    if count > 0:
        first = tl.min(tl.where(bad, offset, BLOCK), 0).to(tl.int64)
        last = tl.max(tl.where(bad, offset, -1), 0).to(tl.int64)
        tl.store(seen + region * 3, first)
        tl.store(seen + region * 3 + 1, last + 1)
        # A store to the host's memory may be under way when the launch ends, and is lost if the next one costs the
        # device: each of these waits until what came before it has arrived.
        tl.atomic_xchg(seen + region * 3 + 2, count, sem="release", scope="sys")
        tl.atomic_add(seen + region * 3 + 2, 0, sem="acq_rel", scope="sys")


def look_at_guards(memory: Tensor, starts: Tensor, stops: Tensor, pattern: int, longest: int, seen: Tensor) -> None:
    """Write the damage to ``seen`` in one launch, and nothing where all is well.

    memory: uint8, 1-D. starts, stops: int64 [n], regions of at most ``longest`` bytes that should all be ``pattern``.
    seen: int64 [n, 3], may be pinned host memory: a region's first damaged byte, the one after the last, their number.
    """
    _look[(starts.numel(),)](memory, starts, stops, seen, pattern, BLOCK=triton.next_power_of_2(longest))

"""Comparison of keys and values with the reference's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specdebug.run.oracles.base import Bench
from specdebug.verdict.outcome import Violation

KV_TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
"""By the engine's dtype, relative to the norm of one position's key or value.

Measured as above, both draft heads: at most 1e-2 in bfloat16 and 1.4e-3 in float16. What a position holds that was
written from another token or state, or not at all, is off by a good part of its norm.
"""


def first_bad_position(ours: Tensor, expected: Tensor, tolerance: float) -> tuple[int, float] | None:
    """First row of [n, heads, D] that is off by more than ``tolerance`` of its norm, and by how much; else None."""
    difference = (ours.float() - expected).flatten(1).norm(dim=1)
    off = difference / expected.flatten(1).norm(dim=1).clamp_min(1e-6)
    bad = ~(off <= tolerance)  # written so that NaN is bad
    if not bool(bad.any()):
        return None
    index = int(bad.nonzero()[0])
    return index, float(off[index])


def all_zero(kv: tuple[Tensor, ...]) -> Tensor:
    """The positions of keys and values [layers, n, heads, D] that hold nothing but zeros: bool [n]."""
    return torch.stack([(side == 0).flatten(2).all(-1).all(0) for side in kv]).all(0)


def report_first_bad(
    bench: Bench,
    what: str,
    request: Any,
    stop: int,
    pairs: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
    position_of: Callable[[int], int] = int,
    layer: int | None = None,
) -> bool:
    """Report the first position of [0, stop) whose key or value is off, as ``mismatch@<what>_kv``; False if none is.
    ``pairs``: keys, then values; each ours and the reference's, rows [n, heads, D]. ``position_of``: a row's position.
    ``layer``: of a draft that has several."""
    for name, (ours, expected) in zip(("key", "value"), pairs, strict=True):
        found = first_bad_position(ours, expected, KV_TOLERANCE[bench.settings.target.dtype])
        if found is None:
            continue
        position, off = position_of(found[0]), found[1]
        whose = f"{what} {name}" if layer is None else f"layer {layer}'s {what} {name}"
        detail = (
            f"{whose} of {request.rid} is off by {off:.2g} of its norm at position {position} of {stop}, "
            f"{bench.place(request, position)}"
        )
        data = {"rid": request.rid, "position": position, "off": off, **({} if layer is None else {"layer": layer})}
        bench.report(Violation("mismatch", f"{what}_kv", bench.step, detail, data=data))
        return True
    return False

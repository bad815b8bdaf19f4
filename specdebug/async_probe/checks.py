"""The checks of a tensor: pure functions of tensors, without gates, sites or records.

``subject`` brings a tensor into a form every check can work on, ``is_clean`` is the quick answer for a CPU, and
``parts`` lists the masks of bad elements: bool tensors of the subject's shape, computed without waiting for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from .gate import OF_INTEGERS

Bound = int | float

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class CheckPart(NamedTuple):
    """One thing that can be wrong: its mask over the subject, and the ``limit`` that it breaks, if any.

    ``phrase``: the relation of a bad value to ``limit``, as in ``not below``; empty when there is no bound. ``limit``:
    an int for integer values, a float for floating-point ones.
    """

    bad: torch.Tensor
    phrase: str
    limit: Bound


def bound_text(phrase: str, limit: Bound) -> str | None:
    """A broken bound as text, None for a check without one."""
    return f"{phrase} {limit!r}" if phrase else None


def subject(tensor: torch.Tensor, relative_to: torch.Tensor | None) -> torch.Tensor:
    """The tensor that is checked: ``tensor``, less ``relative_to`` (broadcast) if given; any shape and strides.

    Types that torch does little with (fp8, bool, small unsigned integers) become float32 or int64.
    """
    tensor = tensor.detach()
    if relative_to is not None:
        if not tensor.is_floating_point():
            tensor = tensor.to(torch.int64)
        return tensor - relative_to.detach()
    if tensor.is_floating_point():
        return tensor.to(torch.float32) if tensor.element_size() == 1 else tensor
    return tensor if tensor.dtype in (torch.int32, torch.int64) else tensor.to(torch.int64)


def applies(kind: str, values: torch.Tensor) -> bool:
    """Return True if such values can fail a check of this kind at all."""
    return values.numel() > 0 and (values.is_floating_point() or kind in OF_INTEGERS)


def is_clean(kind: str, values: torch.Tensor, low: Bound, high: Bound) -> bool:
    """Return True if nothing is wrong, False also if that is not quickly seen. Reads the tensor: for CPUs only."""
    if kind in ("nan", "inf"):
        # One pass and no mask: a sum is finite only if every term is. float32 keeps fp16 from overflowing.
        total = values.sum() if values.element_size() >= 4 else values.sum(dtype=torch.float32)
        return math.isfinite(total.item())
    if kind == "oob":
        least, most = torch.aminmax(values)
        return bool(least.item() >= low and most.item() < high)
    return not bool((values % high).any())


def parts(kind: str, values: torch.Tensor, low: Bound, high: Bound) -> Iterator[CheckPart]:
    """Everything that can be wrong: one part, or for oob one for each bound that a value can break.

    ``low``/``high`` are the bounds of an oob check; for page_aligned ``high`` is the page size.
    """
    if kind in ("nan", "inf"):
        yield CheckPart(torch.isnan(values) if kind == "nan" else torch.isinf(values), "", 0.0)
    elif kind == "page_aligned":
        yield CheckPart((values % high) != 0, "not a multiple of", high)
    elif values.is_floating_point():
        # In float64 a bound is compared as it was given; a NaN is not >= low, so it breaks that bound.
        exact = values.to(torch.float64)
        yield CheckPart(~(exact >= low), "below", float(low))
        yield CheckPart(exact >= high, "not below", float(high))
    else:
        exact = values.to(torch.int64)
        above, below = whole_bounds(low, high)
        if above is not None:
            yield CheckPart(exact <= above, "below", min(above + 1, INT64_MAX))
        if below is not None:
            yield CheckPart(exact >= below, "not below", below)


def whole_bounds(low: Bound, high: Bound) -> tuple[int | None, int | None]:
    """An int64 is out of bounds if it is not above the first or not below the second; None: no int64 is.

    Both are int64 themselves: a bound beyond the type would wrap around in a comparison.
    """
    ends = {math.inf: INT64_MAX + 1, -math.inf: INT64_MIN}
    low, high = (ends[bound] if bound in ends else math.ceil(bound) for bound in (low, high))
    above = min(low - 1, INT64_MAX) if low > INT64_MIN else None
    return above, max(high, INT64_MIN) if high <= INT64_MAX else None


def picked(tensor: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The subject at rows ``at`` (taken flat) of dimension 1 of ``tensor`` [L, N, ...]: [L, n, ...]; no row: zeros."""
    at = at.reshape(-1)
    # A look at the indices costs a tenth of what masking would.
    if at.is_cpu and at.numel() and is_clean("oob", at, 0, tensor.shape[1]):
        return subject(tensor.detach().index_select(1, at), None)
    there = (at >= 0) & (at < tensor.shape[1])
    rows = subject(tensor.detach().index_select(1, torch.where(there, at, 0)), None)
    return rows.masked_fill(~there.view(1, -1, *[1] * (tensor.dim() - 2)), 0)

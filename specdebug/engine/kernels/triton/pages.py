"""Arithmetic on slots that several kernels share."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def page_of(slots, PAGE: tl.constexpr):
    """The page of each slot, rounded down as torch does; a device's own integer division rounds to zero."""
    pages = slots // PAGE
    return tl.where(slots - pages * PAGE < 0, pages - 1, pages)

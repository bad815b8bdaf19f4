"""A number and its index as one int64, so that one reduction finds the largest, and of equals the first."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def as_key(x, index):
    """Order float32 ``x`` by value, NaN largest of all, and equals by index, the first largest.

    No key is as small as -0x7FFFFFFFFFFFFFFF, which can stand for none.
    """
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # -0.0 becomes 0.0
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # negative numbers grow with their magnitude
    bits = tl.where(x != x, 0x7FFFFFFF, bits)
    return (bits.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def value_of(key):
    """The float32 that a key was made of."""
    bits = (key >> 32).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def index_of(key):
    """The int64 index that a key was made of."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)

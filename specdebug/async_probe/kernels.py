# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""The kernels behind a probe on a GPU: one launch looks at one tensor (or a few) for everything asked of it.

Imported only when a probe meets a CUDA tensor; needs Triton. ``device.py`` says how launches are made, ``sweep.py``
what their programs do, ``layout.py`` what ``state`` holds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import layout
from .sweep import arrive, narrowed, sweep, sweep_strided

_PICKED = tl.constexpr(layout.PICKED)

# Of these, every value is served by the same machine code.
_NUMBERS = ("size", "every", "low", "high", "tag_0", "tag_1")
_PLACES = ("d0", "d1", "d2", "d3", "s0", "s1", "s2", "s3")


@triton.jit(do_not_specialize=[*_NUMBERS, "origin"])
def look_flat(
    x, other, state, size: tl.int64, every: tl.int32, low: tl.int64, high: tl.int64,
    tag_0: tl.int32, tag_1: tl.int32, origin: tl.int32,
    LOOK: tl.constexpr, RELATIVE: tl.constexpr, WIDE: tl.constexpr,
    TILE_BYTES: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One contiguous tensor of ``size`` elements. RELATIVE: less ``other[i // every]``. WIDE: as in look_strided.

    BLOCKS: how many loads a tile of TILE_BYTES is read by, one after another.
    """
    arrive(state, origin)
    sweep(
        x, other, size, every, low, high, tag_0, tag_1, state, origin, tl.program_id(0), tl.num_programs(0),
        LOOK, RELATIVE, WIDE, TILE_BYTES, BLOCKS,
    )  # fmt: skip


@triton.jit(do_not_specialize=[*_NUMBERS, *_PLACES, "tag_0_b", "tag_1_b", "end", "origin"])
def look_strided(
    x, x_b, other, state, size: tl.int64, d0: tl.int64, d1: tl.int64, d2: tl.int64, d3: tl.int64,
    s0: tl.int64, s1: tl.int64, s2: tl.int64, s3: tl.int64, low: tl.int64, high: tl.int64,
    tag_0: tl.int32, tag_1: tl.int32, tag_0_b: tl.int32, tag_1_b: tl.int32, end: tl.int32, origin: tl.int32,
    LOOK: tl.constexpr, LAYOUT: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr, PAIR: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One tensor of ``size`` elements with strides. d, s: sizes and strides, from the last dimension on.

    LAYOUT STRIDED: up to four dimensions. PICKED: [L, N, d0] at the d1 rows ``other`` (those outside 0..N-1 are
    passed over), d2 = N, strides s2, s1, s0; d3 of the rows lie side by side, then s3 further on the next. VECTOR:
    s0 is 1, and 16 divides d0 and the other strides of x. WIDE: int32 does not do for indices. PAIR: programs from
    ``end`` on look at another tensor of the same shape, at the same places. TILE, ROWS: as in sweep_strided.
    """
    arrive(state, origin)
    if VECTOR:  # so that the compiler knows, and loads several elements at once
        size = size // 16 * 16
        d0 = d0 // 16 * 16
        s1 = s1 // 16 * 16
        s2 = s2 // 16 * 16
        if LAYOUT != _PICKED:
            s3 = s3 // 16 * 16
    n = narrowed(size, WIDE)
    pid = tl.program_id(0)
    if PAIR:
        if pid < end:
            sweep_strided(
                x, other, n, d0, d1, d2, d3, s0, s1, s2, s3, low, high, tag_0, tag_1, state, origin,
                pid, end, LOOK, LAYOUT, VECTOR, TILE, ROWS,
            )  # fmt: skip
        else:
            sweep_strided(
                x_b, other, n, d0, d1, d2, d3, s0, s1, s2, s3, low, high, tag_0_b, tag_1_b, state, origin,
                pid - end, end, LOOK, LAYOUT, VECTOR, TILE, ROWS,
            )  # fmt: skip
    else:
        sweep_strided(
            x, other, n, d0, d1, d2, d3, s0, s1, s2, s3, low, high, tag_0, tag_1, state, origin,
            pid, end, LOOK, LAYOUT, VECTOR, TILE, ROWS,
        )  # fmt: skip


@triton.jit(do_not_specialize=[f"{name}_{job}" for name in (*_NUMBERS, "end") for job in "abcd"] + ["origin"])
def look_several(
    x_a, other_a, size_a: tl.int64, every_a: tl.int32, low_a: tl.int64, high_a: tl.int64,
    tag_0_a: tl.int32, tag_1_a: tl.int32, end_a: tl.int32,
    x_b, other_b, size_b: tl.int64, every_b: tl.int32, low_b: tl.int64, high_b: tl.int64,
    tag_0_b: tl.int32, tag_1_b: tl.int32, end_b: tl.int32,
    x_c, other_c, size_c: tl.int64, every_c: tl.int32, low_c: tl.int64, high_c: tl.int64,
    tag_0_c: tl.int32, tag_1_c: tl.int32, end_c: tl.int32,
    x_d, other_d, size_d: tl.int64, every_d: tl.int32, low_d: tl.int64, high_d: tl.int64,
    tag_0_d: tl.int32, tag_1_d: tl.int32, end_d: tl.int32,
    state, origin: tl.int32,
    LOOK_A: tl.constexpr, RELATIVE_A: tl.constexpr, TILE_BYTES_A: tl.constexpr, BLOCKS_A: tl.constexpr,
    LOOK_B: tl.constexpr, RELATIVE_B: tl.constexpr, TILE_BYTES_B: tl.constexpr, BLOCKS_B: tl.constexpr,
    LOOK_C: tl.constexpr, RELATIVE_C: tl.constexpr, TILE_BYTES_C: tl.constexpr, BLOCKS_C: tl.constexpr,
    LOOK_D: tl.constexpr, RELATIVE_D: tl.constexpr, TILE_BYTES_D: tl.constexpr, BLOCKS_D: tl.constexpr,
):  # fmt: skip
    """Two to four tensors, each as in ``look_flat``; programs up to ``end`` are its own. LOOK 0: none."""
    arrive(state, origin)
    pid = tl.program_id(0)
    if pid < end_a:
        sweep(
            x_a, other_a, size_a, every_a, low_a, high_a, tag_0_a, tag_1_a, state, origin, pid, end_a,
            LOOK_A, RELATIVE_A, False, TILE_BYTES_A, BLOCKS_A,
        )  # fmt: skip
    elif pid < end_b:
        sweep(
            x_b, other_b, size_b, every_b, low_b, high_b, tag_0_b, tag_1_b, state, origin, pid - end_a, end_b - end_a,
            LOOK_B, RELATIVE_B, False, TILE_BYTES_B, BLOCKS_B,
        )  # fmt: skip
    elif pid < end_c:
        if LOOK_C > 0:
            sweep(
                x_c, other_c, size_c, every_c, low_c, high_c, tag_0_c, tag_1_c, state, origin,
                pid - end_b, end_c - end_b, LOOK_C, RELATIVE_C, False, TILE_BYTES_C, BLOCKS_C,
            )  # fmt: skip
    else:
        if LOOK_D > 0:
            sweep(
                x_d, other_d, size_d, every_d, low_d, high_d, tag_0_d, tag_1_d, state, origin,
                pid - end_c, end_d - end_c, LOOK_D, RELATIVE_D, False, TILE_BYTES_D, BLOCKS_D,
            )  # fmt: skip

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""The kernel that sums up groups of rows on a GPU; ``device_hashes.py`` says what for, and holds the reference.

Imported only when a recorder meets a CUDA tensor; needs Triton.
"""

import triton
import triton.language as tl

TILE = 1024
LOOPS = 4  # a program adds up that many tiles


_NUMBERS = ("first", "size", "width", "layers", "rows", "layer_stride", "row_stride", "unit", "shares")


@triton.jit(do_not_specialize=_NUMBERS)
def add_sums(
    x, at, out, first: tl.int64, size: tl.int64, width: tl.int64, layers: tl.int64, rows: tl.int64,
    layer_stride: tl.int64, row_stride: tl.int64, unit: tl.int64, shares: tl.int64,
    BITS: tl.constexpr, PICKED: tl.constexpr, TILE: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    """Add to ``out[first + group]`` what the ``size`` elements of a group come to: a program for each share of a group.
    x: contiguous. PICKED: [layers, rows, width] with the strides given, of which ``unit`` rows ``at`` make a group (for
    those outside 0..rows-1 the nearest inside); an element's place counts rows first, then layers. BITS: of an
    element."""
    group = tl.program_id(0).to(tl.int64) // shares
    share = tl.program_id(0).to(tl.int64) % shares
    end = size
    before = tl.zeros((), tl.int64)  # elements of the group before the row and layer of this program
    origin = group * size
    if PICKED:  # a share lies in one row of one layer: divisions for each element would take longer than all else
        parts = (width + LOOPS * TILE - 1) // (LOOPS * TILE)
        line = share // parts
        share = share - line * parts
        slot = tl.load(at + group * unit + line // layers).to(tl.int64)
        slot = tl.minimum(tl.maximum(slot, 0), rows - 1)
        origin = (line % layers) * layer_stride + slot * row_stride
        before = line * width
        end = width
    total = tl.zeros((TILE,), tl.int64)
    for loop in tl.static_range(LOOPS):
        column = (share * LOOPS + loop) * TILE + tl.arange(0, TILE)
        inside = column < end
        address = origin + column
        place = before + column
        value = tl.load(x + address, mask=inside, other=0)
        if BITS == 8:
            bits = value.to(tl.int8, bitcast=True).to(tl.int64)
        elif BITS == 16:
            bits = value.to(tl.int16, bitcast=True).to(tl.int64)
        elif BITS == 32:
            bits = value.to(tl.int32, bitcast=True).to(tl.int64)
        else:
            bits = value.to(tl.int64, bitcast=True)
        mixed = (place + 1) * -7046029254386353131
        mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
        term = (bits ^ (mixed ^ (mixed >> 32))) * ((mixed ^ (mixed >> 27)) | 1)
        total += tl.where(inside, term, 0)
    tl.atomic_add(out + first + group, tl.sum(total, axis=0), sem="relaxed")

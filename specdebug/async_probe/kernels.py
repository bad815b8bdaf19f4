# ruff: noqa: SIM102, SIM108  (how a branch is written decides what the compiler prunes and what programs skip)
"""The kernels behind a probe on a GPU: one launch looks at one tensor (or a few) for everything asked of it.

A program reads its tiles once, and writes nothing if all is well. Contiguous floats are looked at in 16-byte words,
several elements at a time: with the signs cleared, adding the right constant carries into an element's sign bit exactly
if the element is infinite or NaN. A program that saw something bad reads its tiles again, element by element, and
appends one row for each of the (at most two) things that are wrong with them.

``_0`` and ``_1`` are the two parts of a finding: NaN and infinity; not above ``low`` and not below ``high``; not a
multiple of ``low``, and nothing. A part whose tag is negative was not asked for. ``low`` and ``high`` are int64: bounds
of integers as they are, those of floats as the bits of a float64; looking for infinities and NaNs, the bits of infinity
and the constant to add.

Imported only when a probe meets a CUDA tensor; needs Triton. ``device.py`` says how launches are made, ``rows.py`` what
``state`` holds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import rows

_CURSOR = tl.constexpr(rows.CURSOR)
_LIMIT = tl.constexpr(rows.LIMIT)
_STEP = tl.constexpr(rows.STEP)
_ROWS = tl.constexpr(rows.ROWS)
_TOTALS = tl.constexpr(rows.TOTALS)
_FINE = tl.constexpr(rows.FINE)
_CELLS = tl.constexpr(rows.CELLS)
_TABLE = tl.constexpr(rows.TABLE)
_COLUMNS = tl.constexpr(rows.COLUMNS)
_TAG_ENTRY = tl.constexpr(rows.TAG_ENTRY)
_NONFINITE = tl.constexpr(rows.NONFINITE)
_BOUNDS = tl.constexpr(rows.BOUNDS)
_FLAT = tl.constexpr(rows.FLAT)
_PICKED = tl.constexpr(rows.PICKED)

_CHUNK = tl.constexpr(256)  # elements looked at together once something is known to be bad: few registers


@triton.jit
def arrive(state, origin):
    """Count this program in, so that it can tell which replay of a captured launch (origin < 0) it is part of."""
    tl.atomic_add(state + _CELLS + tl.maximum(-origin, 0), 1, mask=origin < 0, sem="relaxed")


@triton.jit
def _append(state, origin, tag, count, index, value, limit):
    """One program's share of a finding: a row if there is room, and the totals in any case."""
    entry = tag >> _TAG_ENTRY
    tl.atomic_add(state + _TOTALS + entry, count, sem="relaxed")
    tl.store(state + _FINE + entry, 0)
    # Every program of earlier replays has arrived, and of this one between one and all.
    arrived = tl.atomic_add(state + _CELLS + tl.maximum(-origin, 0), 0, sem="relaxed")
    ticket = tl.atomic_add(state + _CURSOR, 1, sem="relaxed")
    if ticket < tl.load(state + _LIMIT):
        table = tl.load(state + _TABLE).to(tl.pointer_type(tl.int64))
        row = table + (ticket % tl.load(state + _ROWS)) * _COLUMNS
        tl.store(row + 1, origin)
        tl.store(row + 2, (arrived - 1) // tl.num_programs(0))
        tl.store(row + 3, tl.load(state + _STEP))
        tl.store(row + 4, tag)
        tl.store(row + 5, index)
        tl.store(row + 6, value)
        tl.store(row + 7, count)
        tl.store(row + 8, limit)
        # A store to the host's memory may be under way when the launch ends, and is lost if the next one costs the
        # device. Each of these waits until what came before it has arrived: first the row, then what says it is there.
        tl.atomic_xchg(row, ticket + 1, sem="release", scope="sys")
        tl.atomic_add(state + _CURSOR, 0, sem="acq_rel", scope="sys")


@triton.jit
def _pointer(x, LOOK: tl.constexpr):
    """The pointer that elements are read through: to their bits, if infinities and NaNs are looked for."""
    SIZE: tl.constexpr = x.dtype.element_ty.primitive_bitwidth
    if LOOK != _NONFINITE:
        pointer = x
    elif SIZE == 64:
        pointer = x.to(tl.pointer_type(tl.int64))
    elif SIZE == 32:
        pointer = x.to(tl.pointer_type(tl.int32))
    elif SIZE == 16:
        pointer = x.to(tl.pointer_type(tl.int16))
    else:
        pointer = x.to(tl.pointer_type(tl.int8))
    return pointer


@triton.jit
def narrowed(size, WIDE: tl.constexpr):
    """A number of elements, in the type to reckon with their indices in: int32 is much faster."""
    if WIDE:
        n = size.to(tl.int64)
    else:
        n = size.to(tl.int32)
    return n


@triton.jit
def _magnitude(bits):
    """Floats' bits without the sign, in an integer type that orders them as floats: 64 bits wide or 32."""
    SIZE: tl.constexpr = bits.dtype.primitive_bitwidth
    if SIZE == 64:
        magnitude = bits & 0x7FFFFFFFFFFFFFFF
    elif SIZE == 32:
        magnitude = bits & 0x7FFFFFFF
    elif SIZE == 16:
        magnitude = bits.to(tl.int32) & 0x7FFF
    else:
        magnitude = bits.to(tl.int32) & 0x7F
    return magnitude


@triton.jit
def _exact(value):
    """float64 of floats, int64 of integers."""
    if tl.constexpr(value.dtype.is_floating()):
        if tl.constexpr(value.dtype.primitive_bitwidth < 32):
            wide = value.to(tl.float32).to(tl.float64)
        else:
            wide = value.to(tl.float64)
    else:
        wide = value.to(tl.int64)
    return wide


@triton.jit
def _judge(value, low, high, LOOK: tl.constexpr):
    """Which elements are bad, in part 0 and in part 1."""
    if LOOK == _NONFINITE:
        magnitude = _magnitude(value)
        infinity = low.to(magnitude.dtype)
        bad_0 = magnitude > infinity
        bad_1 = magnitude == infinity
    elif LOOK == _BOUNDS:
        exact = _exact(value)
        if tl.constexpr(value.dtype.is_floating()):
            bad_0 = ~(exact >= low.to(tl.int64).to(tl.float64, bitcast=True))  # so that a NaN is bad
            bad_1 = exact >= high.to(tl.int64).to(tl.float64, bitcast=True)
        else:
            bad_0 = exact <= low
            bad_1 = exact >= high
    else:
        if tl.constexpr(value.dtype.is_floating()):
            bad_0 = value != 0.0  # the host has zeroed what is a multiple
        else:
            bad_0 = _exact(value) % low != 0
        bad_1 = bad_0
    return bad_0, bad_1


@triton.jit
def _fetch(
    x, other, index, inside, every, d0, d1, d2, d3, s0, s1, s2, s3,
    LAYOUT: tl.constexpr, VECTOR: tl.constexpr, RELATIVE: tl.constexpr,
):  # fmt: skip
    """Elements by their row-major index, and which are there at all; arguments as of the two kernels."""
    if LAYOUT == _FLAT:
        value = tl.load(x + index, mask=inside, other=0)
        if RELATIVE:
            base = tl.load(other + index // every, mask=inside, other=0)
            value = value.to(tl.int64) - base.to(tl.int64)
    else:
        column = (index % d0.to(index.dtype)).to(tl.int64)
        left = index // d0.to(index.dtype)
        if VECTOR:
            offset = column
        else:
            offset = column * s0
        if LAYOUT == _PICKED:
            place = left % d1.to(left.dtype)
            place = (place // d3.to(left.dtype)) * s3 + place % d3.to(left.dtype)
            row = tl.load(other + place, mask=inside, other=0).to(tl.int64)
            inside = inside & (row >= 0) & (row < d2)
            offset += row * s1 + (left // d1.to(left.dtype)).to(tl.int64) * s2
        else:
            offset += (left % d1.to(left.dtype)).to(tl.int64) * s1
            left = left // d1.to(left.dtype)
            offset += (left % d2.to(left.dtype)).to(tl.int64) * s2
            offset += (left // d2.to(left.dtype)).to(tl.int64) * s3
        value = tl.load(x + offset, mask=inside, other=0)
    return value, inside


@triton.jit
def _examine(
    x, other, n, every, d0, d1, d2, d3, s0, s1, s2, s3, low, high, tag_0, tag_1, state, origin, first, stride,
    length, LOOK: tl.constexpr, LAYOUT: tl.constexpr, VECTOR: tl.constexpr, RELATIVE: tl.constexpr,
):  # fmt: skip
    """Read this program's tiles, each of ``length`` elements, again and record what is wrong with them."""
    lanes = tl.arange(0, _CHUNK)
    count_0 = tl.zeros([_CHUNK], tl.int64)
    count_1 = tl.zeros([_CHUNK], tl.int64)
    NOWHERE: tl.constexpr = 2 ** (n.dtype.primitive_bitwidth - 1) - 1
    first_0 = tl.full([_CHUNK], NOWHERE, n.dtype)
    first_1 = tl.full([_CHUNK], NOWHERE, n.dtype)
    tiles = tl.cdiv(n, length)
    tile = first.to(n.dtype)
    while tile < tiles:
        start = tile * length
        left = tl.minimum(n - start, length)
        begin = left * 0
        while begin < left:
            index = start + begin + lanes
            value, inside = _fetch(
                x, other, index, begin + lanes < left, every, d0, d1, d2, d3, s0, s1, s2, s3, LAYOUT, VECTOR, RELATIVE
            )
            bad_0, bad_1 = _judge(value, low, high, LOOK)
            bad_0 = bad_0 & inside
            bad_1 = bad_1 & inside
            count_0 += bad_0.to(tl.int64)
            count_1 += bad_1.to(tl.int64)
            first_0 = tl.minimum(first_0, tl.where(bad_0, index, NOWHERE))
            first_1 = tl.minimum(first_1, tl.where(bad_1, index, NOWHERE))
            begin += _CHUNK
        tile += stride
    total_0 = tl.sum(count_0, axis=0)
    total_1 = tl.sum(count_1, axis=0)
    index_0 = tl.min(first_0, axis=0)
    index_1 = tl.min(first_1, axis=0)
    if (tag_0 >= 0) & (total_0 > 0):
        value_0, _ = _fetch(
            x, other, index_0, index_0 < n, every, d0, d1, d2, d3, s0, s1, s2, s3, LAYOUT, VECTOR, RELATIVE
        )
        _append(state, origin, tag_0, total_0, index_0, _exact(value_0).to(tl.int64, bitcast=True), low)
    if (tag_1 >= 0) & (total_1 > 0):
        value_1, _ = _fetch(
            x, other, index_1, index_1 < n, every, d0, d1, d2, d3, s0, s1, s2, s3, LAYOUT, VECTOR, RELATIVE
        )
        _append(state, origin, tag_1, total_1, index_1, _exact(value_1).to(tl.int64, bitcast=True), high)


@triton.jit
def _words(bits):
    """A pointer to bits as one to what is tested at once: 32 of them, or 64 if elements are as long."""
    if tl.constexpr(bits.dtype.element_ty.primitive_bitwidth == 64):
        words = bits
    else:
        words = bits.to(tl.pointer_type(tl.int32))
    return words


@triton.jit
def _carried(word, carry, SIZE: tl.constexpr):
    """Words in which the sign of an element of SIZE bytes is set exactly if the element is suspicious."""
    MAGNITUDE: tl.constexpr = (
        2**63 - 1 if SIZE == 8 else (2**31 - 1 if SIZE == 4 else (0x7FFF7FFF if SIZE == 2 else 0x7F7F7F7F))
    )
    return (word & MAGNITUDE) + carry


@triton.jit
def _any_sign(seen, SIZE: tl.constexpr):
    """1 if any element of the words has its sign set, else 0."""
    MAGNITUDE: tl.constexpr = (
        2**63 - 1 if SIZE == 8 else (2**31 - 1 if SIZE == 4 else (0x7FFF7FFF if SIZE == 2 else 0x7F7F7F7F))
    )
    SIGNS: tl.constexpr = -1 - MAGNITUDE
    return tl.max(((seen & SIGNS) != 0).to(tl.int32), axis=0)


@triton.jit
def _any_suspicious_word(x, n, carry, first, stride, TILE: tl.constexpr, BLOCKS: tl.constexpr):
    """1 if this program's tiles may hold an infinity or NaN, else 0. x: to contiguous, 16-byte aligned bits.

    carry: added to an element's magnitude, it sets the sign bit exactly if it is suspicious; once for every element of
    a word (32 bits, or 64 if elements are as long). Loads without a mask, a few in a row, keep the memory busy: the
    assembler waits for each load under a mask before it begins the next but one.
    """
    SIZE: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    WORD: tl.constexpr = 8 if SIZE == 8 else 4
    WORDS: tl.constexpr = TILE * SIZE // WORD
    BLOCK: tl.constexpr = WORDS // BLOCKS
    GROUP: tl.constexpr = 16 // SIZE
    SIGN: tl.constexpr = -(2**63) if SIZE == 8 else (-(2**31) if SIZE == 4 else (0x8000 if SIZE == 2 else 0x80))
    words = _words(x)
    carry = carry.to(words.dtype.element_ty)
    lanes = tl.arange(0, BLOCK)
    groups = n // GROUP
    whole = groups * (16 // WORD)  # written like this, the compiler knows that 4 divides it and loads 16 bytes
    seen = tl.zeros([BLOCK], words.dtype.element_ty)
    full = whole // WORDS
    tile = first.to(n.dtype)
    while tile < full:
        for block in tl.static_range(BLOCKS):
            word = tl.load(words + tile * WORDS + block * BLOCK + lanes)
            seen |= _carried(word, carry, SIZE)
        tile += stride
    if tile == full:
        left = whole - full * WORDS
        for block in tl.static_range(BLOCKS):
            place = block * BLOCK + lanes
            word = tl.load(words + full * WORDS + place, mask=place < left, other=0)
            seen |= _carried(word, carry, SIZE)
    hit = _any_sign(seen, SIZE)
    if groups * GROUP < n:
        if (tl.cdiv(n, TILE) - 1) % stride == first:
            rest = groups * GROUP + tl.arange(0, 16)
            magnitude = _magnitude(tl.load(x + rest, mask=rest < n, other=0))
            hit = tl.maximum(hit, tl.max((((magnitude + carry) & SIGN) != 0).to(tl.int32), axis=0))
    return hit


@triton.jit
def _any_suspicious_row(
    x, other, n, d0, d1, d2, d3, s1, s2, s3, carry, first, stride, ROWS: tl.constexpr, ROW_BYTES: tl.constexpr
):
    """As ``_any_suspicious_word``, of picked rows that begin at multiples of 16 bytes and end there.

    A program's tile is ROWS rows, read ROW_BYTES of each at a time. A row that there is not is read as another, so
    that loads wait for no mask of rows; what that shows is not found again.
    """
    SIZE: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    WORD: tl.constexpr = 8 if SIZE == 8 else 4
    UNIT: tl.constexpr = 16 * SIZE // WORD  # words in sixteen elements
    words = _words(x)
    carry = carry.to(words.dtype.element_ty)
    ROW_WORDS: tl.constexpr = ROW_BYTES // WORD
    columns = tl.arange(0, ROW_WORDS)
    width = (d0 // 16).to(tl.int32) * UNIT
    rows = n // d0.to(n.dtype)
    seen = tl.zeros([ROWS, ROW_WORDS], words.dtype.element_ty)
    tile = first.to(n.dtype)
    while tile * ROWS < rows:
        row = tl.minimum(tile * ROWS + tl.arange(0, ROWS), rows - 1)
        place = row % d1.to(n.dtype)
        slot = tl.load(other + (place // d3.to(n.dtype)) * s3 + place % d3.to(n.dtype)).to(tl.int64)
        slot = tl.where((slot >= 0) & (slot < d2), slot, 0)
        layer = (row // d1.to(n.dtype)).to(tl.int64)
        start = words + (slot * (s1 // 16 * UNIT) + layer * (s2 // 16 * UNIT))
        at = start[:, None] + columns[None, :]
        begin = width * 0
        while begin <= width - ROW_WORDS:
            seen |= _carried(tl.load(at + begin), carry, SIZE)
            begin += ROW_WORDS
        if begin < width:
            seen |= _carried(tl.load(at + begin, mask=(columns < width - begin)[None, :], other=0), carry, SIZE)
        tile += stride
    return tl.max(_any_sign(seen, SIZE), axis=0)


@triton.jit
def _any_bad_element(
    x, other, n, every, d0, d1, d2, d3, s0, s1, s2, s3, low, high, tag_0, tag_1, first, stride,
    LOOK: tl.constexpr, LAYOUT: tl.constexpr, VECTOR: tl.constexpr, RELATIVE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """1 if anything that was asked for is wrong in this program's tiles, else 0."""
    lanes = tl.arange(0, TILE)
    seen = tl.zeros([TILE], tl.int32)
    tiles = tl.cdiv(n, TILE)
    tile = first.to(n.dtype)
    while tile < tiles:
        index = tile * TILE + lanes
        value, inside = _fetch(
            x, other, index, index < n, every, d0, d1, d2, d3, s0, s1, s2, s3, LAYOUT, VECTOR, RELATIVE
        )
        bad_0, bad_1 = _judge(value, low, high, LOOK)
        seen |= (((bad_0 & (tag_0 >= 0)) | (bad_1 & (tag_1 >= 0))) & inside).to(tl.int32)
        tile += stride
    return tl.max(seen, axis=0)


@triton.jit
def sweep(
    x, other, size, every, low, high, tag_0, tag_1, state, origin, first, stride,
    LOOK: tl.constexpr, RELATIVE: tl.constexpr, WIDE: tl.constexpr,
    TILE_BYTES: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One contiguous tensor, of which this program takes every ``stride``-th tile from ``first``."""
    TILE: tl.constexpr = TILE_BYTES * 8 // x.dtype.element_ty.primitive_bitwidth
    pointer = _pointer(x, LOOK)
    n = narrowed(size, WIDE)
    if LOOK == _NONFINITE:
        hit = _any_suspicious_word(pointer, n, high, first, stride, TILE, BLOCKS)
    else:
        hit = _any_bad_element(
            pointer, other, n, every, n, n, n, n, n, n, n, n, low, high, tag_0, tag_1, first, stride,
            LOOK, _FLAT, False, RELATIVE, TILE,
        )  # fmt: skip
    if hit > 0:
        _examine(
            pointer, other, n, every, n, n, n, n, n, n, n, n, low, high, tag_0, tag_1, state, origin, first, stride,
            TILE, LOOK, _FLAT, False, RELATIVE,
        )  # fmt: skip


@triton.jit
def sweep_strided(
    x, other, n, d0, d1, d2, d3, s0, s1, s2, s3, low, high, tag_0, tag_1, state, origin, first, stride,
    LOOK: tl.constexpr, LAYOUT: tl.constexpr, VECTOR: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One tensor with strides, of which this program takes every ``stride``-th tile from ``first``.

    ROWS 0: tiles of TILE elements. Otherwise of as many picked rows, of each of which TILE bytes are read at a time.
    """
    pointer = _pointer(x, LOOK)
    if ROWS > 0:
        length = ROWS * d0.to(n.dtype)
        hit = _any_suspicious_row(
            pointer, other, n, d0, d1, d2, d3, s1, s2, s3, high, first, stride, ROWS, TILE
        )  # fmt: skip
    else:
        length = tl.full([], TILE, n.dtype)
        hit = _any_bad_element(
            pointer, other, n, 1, d0, d1, d2, d3, s0, s1, s2, s3, low, high, tag_0, tag_1, first, stride,
            LOOK, LAYOUT, VECTOR, False, TILE,
        )  # fmt: skip
    if hit > 0:
        _examine(
            pointer, other, n, 1, d0, d1, d2, d3, s0, s1, s2, s3, low, high, tag_0, tag_1, state, origin, first, stride,
            length, LOOK, LAYOUT, VECTOR, False,
        )  # fmt: skip


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

"""Small Triton kernels, one for each way in which an address comes about."""

import triton
import triton.language as tl

# Not typed: Triton's language is not.


@triton.jit
def copy(src, dst, first, count, BLOCK: tl.constexpr):
    at = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) < count
    values = tl.load(src + at, mask=inside, other=0)  # the load of copy
    tl.store(dst + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), values, mask=inside)


@triton.jit
def fill(dst, first, count, value, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(dst + first + at, value, mask=at < count)  # the store of fill


@triton.jit
def gather(src, places, out, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < count
    place = tl.load(places + at, mask=inside, other=0)
    tl.store(out + at, tl.load(src + place, mask=inside, other=0), mask=inside)


@triton.jit
def add_at(sums, place):
    tl.atomic_add(sums + place, 1)


@triton.jit
def swap_at(locks, place, out):
    tl.store(out, tl.atomic_cas(locks + place, 0, 1))


@triton.jit
def fill_row(table, stride, start, count, BLOCK: tl.constexpr):
    row = table + tl.program_id(0) * stride
    at = tl.arange(0, BLOCK)
    tl.store(row + start + at, at, mask=at < count)


@triton.jit
def fill_tile(table, stride, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row = table + first * stride
    at = tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    tl.store(row + at, 1)


@triton.jit
def fill_flat(table, step, BLOCK: tl.constexpr):
    start = table + tl.program_id(0) * step
    tl.store(start + tl.arange(0, BLOCK), 1)


@triton.jit
def either(left, right, out, place, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    source = tl.where(at % 2 == 0, left + place, right + place)
    tl.store(out + at, tl.load(source))


@triton.jit
def through_pointers(pointers, out, place):
    base = tl.load(pointers + tl.program_id(0)).to(tl.pointer_type(tl.int32))
    tl.store(out + tl.program_id(0), tl.load(base + place))


@triton.jit
def through_number(address, out, place):
    base = address.to(tl.int64).to(tl.pointer_type(tl.int32))  # a small address is passed as an int32
    tl.store(out, tl.load(base + place))

"""The jobs of kernels: a probe's kind, bounds and tensors in the form of a kernel's arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from . import checks
from . import rows as table
from .checks import Bound
from .rows import float_bits

# The bits of infinity, without the sign; float8_e4m3fn has none, and only NaN lies above its greatest number.
_INFINITY = {
    torch.float64: 0x7FF << 52,
    torch.float32: 0xFF << 23,
    torch.float16: 0x1F << 10,
    torch.bfloat16: 0xFF << 7,
    torch.float8_e5m2: 0x1F << 2,
    torch.float8_e4m3fn: 0x7E,
}
_INTEGERS = (torch.int32, torch.int64)
_WIDE_FROM = 2**31 - 2**16
"""Numbers of elements from which a kernel must not reckon in int32: it looks a tile beyond the end."""


@dataclass(frozen=True, slots=True)
class JobPart:
    """One of the two things a job can find. The tag lacks entry and job."""

    kind: str
    phrase: str
    limit: Bound
    tag: int


class What(NamedTuple):
    """The things to look for. A part is None if it was not asked for, or nothing can be wrong."""

    look: int
    low: int
    high: int
    parts: tuple[JobPart | None, JobPart | None]


@dataclass(slots=True, eq=False)
class ProbeJob:
    """One tensor and the things to look for; the fields are arguments of the kernels.

    ``other`` is subtracted, each element from ``every`` elements in a row, or names the rows of dimension 1 to look at.
    ``sizes``, ``strides``: four of each, from the last dimension on (of picked rows three, then those of the picks).
    """

    tensor: torch.Tensor
    look: int
    low: int
    high: int
    parts: tuple[JobPart | None, JobPart | None]
    size: int
    other: torch.Tensor | None = None
    every: int = 1
    layout: int = table.FLAT
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def vector(self) -> bool:
        """True if sixteen elements in a row are one block of memory, and so the next sixteen."""
        strides = self.strides[1:3] if self.layout == table.PICKED else self.strides[1:]
        return self.strides[0] == 1 and not any(number % 16 for number in (self.sizes[0], *strides))

    @property
    def in_words(self) -> bool:
        """True if rows that are picked consist of aligned blocks of sixteen bytes, to be looked at as such."""
        return (
            self.layout == table.PICKED
            and self.look == table.NONFINITE
            and self.vector
            and self.tensor.data_ptr() % 16 == 0
        )

    def like(self, job: ProbeJob) -> bool:
        """Return True if ``job`` looks for the same at the same places of another tensor."""
        return (
            self.layout == job.layout == table.PICKED
            and self.tensor.dtype == job.tensor.dtype
            and (self.sizes, self.strides, self.low, self.high) == (job.sizes, job.strides, job.low, job.high)
            and self.other is not None
            and job.other is not None
            and self.other.dtype == job.other.dtype
            and self.other.data_ptr() == job.other.data_ptr()
        )

    @property
    def wide(self) -> bool:
        """True if indices need an int64."""
        return self.size >= _WIDE_FROM


def make(
    kinds: tuple[str, ...],
    tensor: torch.Tensor,
    low: Bound,
    high: Bound,
    relative_to: torch.Tensor | None,
    at: torch.Tensor | None,
) -> ProbeJob | None:
    """The job of probing ``tensor`` for ``kinds`` (nan and inf together, or one kind); None: nothing to look at.

    Torch first does what no kernel does: other types, unusual broadcasts of differences, more than four dimensions.
    """
    if kinds[0] in ("nan", "inf"):
        if tensor.dtype not in _INFINITY:
            tensor = tensor.to(torch.float32)
        if at is not None:
            fit = at.dtype in _INTEGERS
            rows = _picks(tensor.shape, tensor.stride(), at.shape, at.stride()) if fit else None
            if rows is not None:
                what = _nonfinite(kinds, tensor.dtype)
                size = tensor.shape[0] * rows[0][0] * rows[0][1]
                return None if what is None else ProbeJob(tensor, *what, size, at, 1, table.PICKED, *rows)
            tensor = checks.picked(tensor, at)
        what, other, every = _nonfinite(kinds, tensor.dtype), None, 1
    elif kinds[0] == "oob":
        tensor, other, every = _difference(tensor, relative_to)
        what = _bounds(tensor.is_floating_point(), low, high)
    else:
        tensor, other, every = checks.subject(tensor, relative_to), None, 1
        if tensor.is_floating_point() or not isinstance(high, int):  # in float64, multiples become zero
            exact = tensor.to(torch.float64)
            tensor = torch.where((exact % high) != 0, exact, 0.0)
        what = _multiple(tensor.is_floating_point(), high)
    if what is None:
        return None
    # Sixteen bytes are read at once when looking for infinities and NaNs.
    fit = what.look != table.NONFINITE or tensor.data_ptr() % 16 == 0
    if fit and tensor.is_contiguous():
        return ProbeJob(tensor, *what, tensor.numel(), other, every)
    dims = merged_dims(tensor.shape, tensor.stride())
    if len(dims) > 4:
        tensor = tensor.contiguous()
        return ProbeJob(tensor, *what, tensor.numel())
    sizes, strides = zip(*dims, *[(1, 0)] * (4 - len(dims)), strict=True)
    return ProbeJob(tensor, *what, tensor.numel(), None, 1, table.STRIDED, sizes, strides)


def merged_dims(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(size, stride) of the fewest dimensions that give the same elements in the same order, the last one first."""
    dims: list[tuple[int, int]] = []
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if dims and stride == dims[-1][0] * dims[-1][1]:
            dims[-1] = (dims[-1][0] * size, dims[-1][1])
        else:
            dims.append((size, stride))
    return dims or [(1, 1)]


@functools.cache
def _nonfinite(kinds: tuple[str, ...], dtype: torch.dtype) -> What | None:
    infinity, bits = _INFINITY[dtype], dtype.itemsize * 8
    nan = _part("nan", "", 0.0, 0, table.NO_LIMIT, dtype) if "nan" in kinds else None
    has_infinity = dtype != torch.float8_e4m3fn
    inf = _part("inf", "", 0.0, 1, table.NO_LIMIT, dtype) if "inf" in kinds and has_infinity else None
    suspicious = infinity if inf is not None else infinity + 1
    carry = (1 << (bits - 1)) - suspicious
    while bits < 32:  # the same for all elements of a 32-bit word
        carry |= carry << bits
        bits *= 2
    return None if nan is inf is None else What(table.NONFINITE, infinity, carry, (nan, inf))


@functools.lru_cache(1024)
def _bounds(of_floats: bool, low: Bound, high: Bound) -> What | None:
    if of_floats:
        ends = ("below", float(low)), ("not below", float(high))
        below_low, above_high = (_part("oob", *end, n, table.FLOAT, torch.float64) for n, end in enumerate(ends))
        return What(table.BOUNDS, float_bits(low), float_bits(high), (below_low, above_high))
    above, below = checks.whole_bounds(low, high)
    if above is below is None:
        return None
    first = min((above or 0) + 1, checks.INT64_MAX)
    part_0 = None if above is None else _part("oob", "below", first, 0, table.ABOVE_INT, torch.int64)
    part_1 = None if below is None else _part("oob", "not below", below, 1, table.INT, torch.int64)
    return What(table.BOUNDS, above or 0, below or 0, (part_0, part_1))


def _difference(
    tensor: torch.Tensor, relative_to: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """A tensor, the one that the kernel is to subtract from it, and the repeats of each element of that."""
    if relative_to is None:
        return tensor if tensor.dtype in _INTEGERS else checks.subject(tensor, None), None, 1
    if tensor.dtype in _INTEGERS and relative_to.dtype in _INTEGERS and tensor.numel() < _WIDE_FROM:
        every = _repeats(tensor.shape, relative_to.shape)
        if every is not None and tensor.is_contiguous() and relative_to.is_contiguous():
            return tensor, relative_to, every
    return checks.subject(tensor, relative_to), None, 1


def _repeats(shape: torch.Size, other: torch.Size) -> int | None:
    """The number of times in a row that each element of a contiguous ``other`` is subtracted, if that is so simple."""
    if shape == other:
        return 1
    if len(other) <= len(shape) and other.numel() == 1:
        return shape.numel()
    if len(other) == len(shape) and other[-1] == 1 and shape[:-1] == other[:-1]:
        return shape[-1]
    return None


@functools.lru_cache(1024, typed=True)
def _multiple(of_floats: bool, unit: Bound) -> What:
    limit, word = (table.INT, unit) if isinstance(unit, int) else (table.FLOAT, float_bits(unit))
    dtype = torch.float64 if of_floats else torch.int64
    return What(table.MULTIPLE, word, 0, (_part("page_aligned", "not a multiple of", unit, 0, limit, dtype), None))


@functools.lru_cache(1024)
def _picks(
    shape: torch.Size, strides: tuple[int, ...], at_shape: torch.Size, at_strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The places of picked rows of dimension 1, None if a row is not one evenly strided piece of memory.

    The picks may be columns of a matrix: as many side by side, the next row's further on.
    """
    inner = merged_dims(shape[2:], strides[2:])
    picks = merged_dims(at_shape, at_strides)
    if picks[0][1] != 1:  # none side by side
        picks = [(1, 1), *picks]
    if len(inner) > 1 or len(picks) > 2:
        return None
    size, stride = inner[0]
    columns, further = picks[0][0], picks[1][1] if len(picks) > 1 else 0
    return (size, at_shape.numel(), shape[1], columns), (stride, strides[1], strides[0], further)


def _part(kind: str, phrase: str, limit: Bound, part: int, form: int, dtype: torch.dtype) -> JobPart:
    tag = part << table.TAG_PART | form << table.TAG_LIMIT | table.VALUE_TYPES.index(dtype)
    return JobPart(kind, phrase, limit, tag)

"""What a kernel is asked to look for: a probe's kind, bounds and tensors brought into the form of its arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from . import checks
from .checks import Bound
from .layout import BOUNDS, FLAT, MULTIPLE, NONFINITE, PICKED, STRIDED, TAG_LIMIT, TAG_PART
from .rows import ABOVE_INT, FLOAT, INT, NO_LIMIT, VALUE_TYPES, float_bits

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
    """One of the two things a job can find."""

    kind: str
    phrase: str
    limit: Bound
    tag: int
    """Without entry and job."""


class What(NamedTuple):
    """What to look for."""

    look: int
    low: int
    high: int
    parts: tuple[JobPart | None, JobPart | None]
    """None: not asked for, or nothing can be wrong."""


class TensorLayout(NamedTuple):
    """Four of each, from the last dimension on (of rows picked from a tensor, three; then those of the picks)."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(slots=True, eq=False)
class ProbeJob:
    """One tensor and what to look for; the fields are arguments of the kernels."""

    tensor: torch.Tensor
    look: int
    low: int
    high: int
    parts: tuple[JobPart | None, JobPart | None]
    size: int
    other: torch.Tensor | None = None
    """What is subtracted, or at which rows of dimension 1 to look."""
    every: int = 1
    """How many elements in a row have the same element of ``other`` subtracted."""
    layout: int = FLAT
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def vector(self) -> bool:
        """Whether sixteen elements in a row are one block of memory, and so the next sixteen."""
        strides = self.strides[1:3] if self.layout == PICKED else self.strides[1:]
        return self.strides[0] == 1 and not any(number % 16 for number in (self.sizes[0], *strides))

    @property
    def in_words(self) -> bool:
        """Whether rows that are picked consist of aligned blocks of sixteen bytes, to be looked at as such."""
        return self.layout == PICKED and self.look == NONFINITE and self.vector and self.tensor.data_ptr() % 16 == 0

    def like(self, job: ProbeJob) -> bool:
        """Whether ``job`` looks for the same at the same places of another tensor."""
        return (
            self.layout == job.layout == PICKED
            and self.tensor.dtype == job.tensor.dtype
            and (self.sizes, self.strides, self.low, self.high) == (job.sizes, job.strides, job.low, job.high)
            and self.other is not None
            and job.other is not None
            and self.other.dtype == job.other.dtype
            and self.other.data_ptr() == job.other.data_ptr()
        )

    @property
    def wide(self) -> bool:
        """Whether indices need an int64."""
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

    Arguments are those of the probes. What no kernel does is done in torch first: other types, differences that
    broadcast in unusual ways, more than four dimensions.
    """
    if kinds[0] in ("nan", "inf"):
        if tensor.dtype not in _INFINITY:
            tensor = tensor.to(torch.float32)
        if at is not None:
            rows = _rows(tensor, at)
            if rows is not None:
                what = _nonfinite(kinds, tensor.dtype)
                size = tensor.shape[0] * rows.sizes[0] * rows.sizes[1]
                return None if what is None else ProbeJob(tensor, *what, size, at, 1, PICKED, *rows)
            tensor = checks.picked(tensor, at)
        what, other, every = _nonfinite(kinds, tensor.dtype), None, 1
    elif kinds[0] == "oob":
        tensor, other, every = _difference(tensor, relative_to)
        what = _bounds(tensor.is_floating_point(), low, high)
    else:
        tensor, other, every = _multiple_of(checks.subject(tensor, relative_to), high), None, 1
        what = _multiple(tensor.is_floating_point(), high)
    if what is None:
        return None
    # Sixteen bytes are read at once when looking for infinities and NaNs.
    fit = what.look != NONFINITE or tensor.data_ptr() % 16 == 0
    if fit and tensor.is_contiguous():
        return ProbeJob(tensor, *what, tensor.numel(), other, every)
    dims = merged_dims(tensor.shape, tensor.stride())
    if len(dims) > 4:
        tensor = tensor.contiguous()
        return ProbeJob(tensor, *what, tensor.numel())
    dims += [(1, 0)] * (4 - len(dims))
    sizes, strides = zip(*dims, strict=True)
    return ProbeJob(tensor, *what, tensor.numel(), None, 1, STRIDED, sizes, strides)


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
    form = VALUE_TYPES.index(dtype)
    nan = JobPart("nan", "", 0.0, _tag(0, NO_LIMIT, form)) if "nan" in kinds else None
    has_infinity = dtype != torch.float8_e4m3fn
    inf = JobPart("inf", "", 0.0, _tag(1, NO_LIMIT, form)) if "inf" in kinds and has_infinity else None
    suspicious = infinity if inf is not None else infinity + 1
    carry = (1 << (bits - 1)) - suspicious
    for width in (8, 16):  # the same for all elements of a 32-bit word
        if bits == width:
            carry |= carry << width
            bits *= 2
    return None if nan is inf is None else What(NONFINITE, infinity, carry, (nan, inf))


@functools.lru_cache(1024)
def _bounds(of_floats: bool, low: Bound, high: Bound) -> What | None:
    if of_floats:
        low, high, form = float(low), float(high), VALUE_TYPES.index(torch.float64)
        parts = (
            JobPart("oob", "below", low, _tag(0, FLOAT, form)),
            JobPart("oob", "not below", high, _tag(1, FLOAT, form)),
        )
        return What(BOUNDS, float_bits(low), float_bits(high), parts)
    above, below = checks.whole_bounds(low, high)
    form = VALUE_TYPES.index(torch.int64)
    part_0 = part_1 = None
    if above is not None:
        part_0 = JobPart("oob", "below", min(above + 1, checks.INT64_MAX), _tag(0, ABOVE_INT, form))
    if below is not None:
        part_1 = JobPart("oob", "not below", below, _tag(1, INT, form))
    return None if part_0 is part_1 is None else What(BOUNDS, above or 0, below or 0, (part_0, part_1))


def _difference(
    tensor: torch.Tensor, relative_to: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """A tensor, what the kernel is to subtract from it, and how often each element of that."""
    if relative_to is None:
        return tensor if tensor.dtype in _INTEGERS else checks.subject(tensor, None), None, 1
    if tensor.dtype in _INTEGERS and relative_to.dtype in _INTEGERS and tensor.numel() < _WIDE_FROM:
        every = _repeats(tensor.shape, relative_to.shape)
        if every is not None and tensor.is_contiguous() and relative_to.is_contiguous():
            return tensor, relative_to, every
    return checks.subject(tensor, relative_to), None, 1


def _repeats(shape: torch.Size, other: torch.Size) -> int | None:
    """How often each element of a contiguous ``other`` is subtracted in a row, if it is as simple as that."""
    if shape == other:
        return 1
    if len(other) <= len(shape) and other.numel() == 1:
        return shape.numel()
    if len(other) == len(shape) and other[-1] == 1 and shape[:-1] == other[:-1]:
        return shape[-1]
    return None


def _multiple_of(values: torch.Tensor, unit: Bound) -> torch.Tensor:
    """int32 or int64 as they are; otherwise float64, in which multiples of ``unit`` have become zero."""
    if not values.is_floating_point() and isinstance(unit, int):
        return values
    exact = values.to(torch.float64)
    return torch.where((exact % unit) != 0, exact, 0.0)


@functools.lru_cache(1024, typed=True)
def _multiple(of_floats: bool, unit: Bound) -> What:
    form = VALUE_TYPES.index(torch.float64 if of_floats else torch.int64)
    limit, word = (INT, unit) if isinstance(unit, int) else (FLOAT, float_bits(unit))
    part = JobPart("page_aligned", "not a multiple of", unit, _tag(0, limit, form))
    return What(MULTIPLE, word, 0, (part, None))


def _rows(tensor: torch.Tensor, at: torch.Tensor) -> TensorLayout | None:
    """Where rows of dimension 1 lie, unless they are not one evenly strided piece of memory each.

    ``at`` may be columns of a matrix: as many side by side, the next row's further on.
    """
    if at.dtype not in _INTEGERS:
        return None
    return _picks(tensor.shape, tensor.stride(), at.shape, at.stride())


@functools.lru_cache(1024)
def _picks(
    shape: torch.Size, strides: tuple[int, ...], at_shape: torch.Size, at_strides: tuple[int, ...]
) -> TensorLayout | None:
    inner = merged_dims(shape[2:], strides[2:])
    picks = merged_dims(at_shape, at_strides)
    if picks[0][1] != 1:  # none side by side
        picks = [(1, 1), *picks]
    if len(inner) > 1 or len(picks) > 2:
        return None
    size, stride = inner[0]
    columns, further = picks[0][0], picks[1][1] if len(picks) > 1 else 0
    return TensorLayout((size, at_shape.numel(), shape[1], columns), (stride, strides[1], strides[0], further))


def _tag(part: int, limit: int, form: int) -> int:
    return part << TAG_PART | limit << TAG_LIMIT | form

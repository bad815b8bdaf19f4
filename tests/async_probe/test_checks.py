"""Checks of a tensor against numpy and at the edges of types, and the jobs that kernels get."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specdebug.async_probe import checks, jobs
from specdebug.async_probe.rows import BOUNDS, FLAT, NONFINITE, PICKED, STRIDED

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def _masks(kind: str, tensor: torch.Tensor, low: float = 0, high: float = 0) -> dict[str, list[bool]]:
    values = checks.subject(tensor, None)
    return {part.phrase: part.bad.reshape(-1).tolist() for part in checks.parts(kind, values, low, high)}


def _clean(kind: str, tensor: torch.Tensor, low: float = 0, high: float = 0) -> bool:
    return checks.is_clean(kind, checks.subject(tensor, None), low, high)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_in_every_float_type(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, math.nan, -2.0]).to(dtype)
    assert _masks("nan", tensor) == {"": [False, True, False]}
    assert not _clean("nan", tensor)
    assert _clean("nan", torch.ones(3).to(dtype))


@pytest.mark.parametrize("dtype", [t for t in FLOATS if t != torch.float8_e4m3fn])  # e4m3fn has no infinity
def test_inf_in_every_float_type(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, math.inf, -math.inf, math.nan]).to(dtype)
    assert _masks("inf", tensor) == {"": [False, True, True, False]}
    assert not _clean("inf", tensor)


def test_half_precision_sums_that_overflow_are_still_clean() -> None:
    assert _clean("inf", torch.full((4096,), 60000.0, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_bounds_beyond_the_type_do_not_wrap(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1, 2], dtype=dtype)
    assert _masks("oob", tensor, -(2**40), 2**40) == {"below": [False, False], "not below": [False, False]}
    assert _masks("oob", tensor, 2**40, 2**41)["below"] == [True, True]


def test_bounds_at_the_ends_of_int64() -> None:
    least, most = -(2**63), 2**63 - 1
    tensor = torch.tensor([least, 0, most])
    assert _masks("oob", tensor, least, 2**63) == {}
    assert _masks("oob", tensor, 2**70, 2**71) == {"below": [True, True, True]}
    assert _masks("oob", tensor, -(2**71), -(2**70)) == {"not below": [True, True, True]}
    assert _masks("oob", tensor, -math.inf, math.inf) == {}


def test_float_bounds_are_not_rounded_to_a_narrow_type() -> None:
    ones = torch.ones(2, dtype=torch.bfloat16)
    assert _masks("oob", ones, 0, 1.0000001)["not below"] == [False, False]
    assert _masks("oob", ones, 1.0000001, 2)["below"] == [True, True]


_SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, max_side=5)


@settings(max_examples=150)
@given(
    array=hnp.arrays(np.float32, _SHAPES, elements=st.sampled_from([0.0, -1.5, 2.0, 3e38, np.nan, np.inf, -np.inf])),
    low=st.sampled_from([-2.0, 0.0, 1.0]),
    high=st.sampled_from([0.0, 2.0, 5.0]),
    strided=st.booleans(),
)
def test_floats_against_numpy(array: np.ndarray, low: float, high: float, strided: bool) -> None:
    tensor = torch.from_numpy(array)
    if strided and array.ndim:
        array, tensor = array.T[::2], tensor.permute(*reversed(range(array.ndim)))[::2]
    assert _masks("nan", tensor) == {"": np.isnan(array).ravel().tolist()}
    assert _masks("inf", tensor) == {"": np.isinf(array).ravel().tolist()}
    assert _masks("oob", tensor, low, high) == {
        "below": (~(array >= low)).ravel().tolist(),
        "not below": (array >= high).ravel().tolist(),
    }
    # The quick answer may be "not sure", never "clean" when it is not.
    for kind in ("nan", "inf", "oob"):
        if _clean(kind, tensor, low, high):
            assert not any(any(mask) for mask in _masks(kind, tensor, low, high).values())


@settings(max_examples=150)
@given(
    array=hnp.arrays(np.int64, _SHAPES, elements=st.integers(-8, 8)),
    low=st.integers(-9, 9),
    high=st.integers(-9, 9),
    page_size=st.sampled_from([1, 2, 4]),
)
def test_integers_against_numpy(array: np.ndarray, low: int, high: int, page_size: int) -> None:
    tensor = torch.from_numpy(array)
    masks = _masks("oob", tensor, low, high)
    assert masks == {
        "below": (array < low).ravel().tolist(),
        "not below": (array >= high).ravel().tolist(),
    }
    assert _clean("oob", tensor, low, high) == (not any(any(mask) for mask in masks.values()))
    unaligned = array % page_size != 0
    assert _masks("page_aligned", tensor, 0, page_size) == {"not a multiple of": unaligned.ravel().tolist()}
    assert _clean("page_aligned", tensor, 0, page_size) == (not unaligned.any())


BOTH = ("nan", "inf")


def _make(
    kinds: tuple[str, ...],
    tensor: torch.Tensor,
    low: float = 0,
    high: float = 0,
    relative_to: torch.Tensor | None = None,
    at: torch.Tensor | None = None,
) -> jobs.ProbeJob:
    job = jobs.make(kinds, tensor, low, high, relative_to, at)
    assert job is not None
    return job


def test_strided_tensors_are_not_copied_up_to_four_dimensions() -> None:
    tensor = torch.ones(3, 4, 5, 6, 7)
    job = _make(BOTH, tensor.transpose(0, 4)[1:])
    assert job.layout == STRIDED
    assert job.tensor.data_ptr() == tensor[..., 1:].data_ptr()
    five = torch.ones(5, 5, 5, 5, 5)[::2, ::2, ::2, ::2, ::2]
    copied = _make(BOTH, five)
    assert (copied.layout, copied.size) == (FLAT, five.numel())


def test_rows_picked_from_a_pool() -> None:
    pool = torch.ones(4, 12, 2, 16)
    job = _make(("nan",), pool[2:], at=torch.tensor([3, 5, 3]))
    assert (job.layout, job.size, job.vector) == (PICKED, 2 * 3 * 32, True)
    assert job.sizes[:3] == (32, 3, 12)
    assert job.strides[:3] == (1, 32, 12 * 32)
    columns = _make(("nan",), pool[2:], at=torch.zeros(5, 4, dtype=torch.int64)[:, :3])
    assert (columns.layout, columns.sizes[1], columns.sizes[3], columns.strides[3]) == (PICKED, 15, 3, 4)
    # Rows in pieces are gathered first.
    assert _make(("nan",), pool.transpose(2, 3), at=torch.tensor([3])).layout == FLAT


def test_what_cannot_be_wrong_is_not_looked_for() -> None:
    assert jobs.make(("inf",), torch.ones(3).to(torch.float8_e4m3fn), 0, 0, None, None) is None
    assert jobs.make(("oob",), torch.ones(3, dtype=torch.int64), -(2**70), 2**70, None, None) is None
    job = _make(("oob",), torch.ones(3, dtype=torch.int64), 0, 2**63)
    assert job.look == BOUNDS
    assert job.parts[0] is not None
    assert job.parts[1] is None


def test_types_without_kernels_are_converted() -> None:
    assert _make(("oob",), torch.ones(3, dtype=torch.uint8), 0, 2).tensor.dtype == torch.int64
    assert _make(("oob",), torch.ones(3).to(torch.float8_e5m2), 0, 2).tensor.dtype == torch.float32
    assert _make(BOTH, torch.ones(3).to(torch.float8_e4m3fnuz)).tensor.dtype == torch.float32


def test_from_two_to_the_31_on_indices_are_wide() -> None:
    meta = torch.empty(2**31, dtype=torch.int8, device="meta").view(torch.float8_e5m2)
    big = jobs.ProbeJob(meta, NONFINITE, 0, 0, (None, None), meta.numel())
    assert big.wide
    assert not jobs.ProbeJob(meta, NONFINITE, 0, 0, (None, None), 2**31 - 2**17).wide

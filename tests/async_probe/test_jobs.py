"""What kernels are asked for: which tensors they take as they are, and how the others are brought into form."""

from __future__ import annotations

import pytest
import torch

from specdebug.async_probe import jobs
from specdebug.async_probe.rows import BOUNDS, FLAT, NONFINITE, PICKED, STRIDED

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


def test_contiguous_tensors_are_taken_as_they_are() -> None:
    tensor = torch.ones(6, 10)
    for given_tensor in (tensor, tensor[2:4], tensor.view(3, 2, 10)):
        job = _make(BOTH, given_tensor)
        assert job.tensor is given_tensor
        assert (job.look, job.layout, job.size) == (NONFINITE, FLAT, given_tensor.numel())


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


def test_picked_rows_are_words_if_they_are_aligned_blocks() -> None:
    flat, at = torch.ones(4 * 12 * 32 + 16), torch.tensor([3])
    assert _make(("nan",), flat[:-16].view(4, 12, 32), at=at).in_words
    assert not _make(("nan",), flat[1:-15].view(4, 12, 32), at=at).in_words
    assert not _make(("nan",), flat[:-16].view(4, 48, 8), at=at).in_words
    assert not _make(("nan",), flat[:-16].view(4, 12, 32)).in_words


@pytest.mark.parametrize(
    ("shape", "other", "every"),
    [((6,), (6,), 1), ((2, 3), (2, 1), 3), ((2, 3), (1,), 6), ((2, 3), (), 6), ((2, 3), (1, 1), 6)],
)
def test_simple_differences_are_left_to_the_kernel(shape: tuple[int, ...], other: tuple[int, ...], every: int) -> None:
    base = torch.zeros(other, dtype=torch.int32)
    job = _make(("oob",), torch.ones(shape, dtype=torch.int64), 0, 9, base)
    assert job.other is base
    assert job.every == every


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

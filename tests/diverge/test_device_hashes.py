"""Sums on a device, and what becomes of them: by torch, by the kernel (interpreted, without a GPU), on their way."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.async_probe import SiteCall
from specdebug.diverge.device_hashes import (
    BLOCK,
    CapturedSums,
    Groups,
    Memory,
    StepSums,
    _launch,
    reference,
)
from specdebug.diverge.owners import Segment
from specdebug.diverge.sums import Layout, row_sums
from tests.diverge.samples import SEGMENTS, flipped

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)


def call_of(tensor: Tensor, at: Tensor | None = None) -> SiteCall:
    return SiteCall("a.site", "nan", tensor, 0, 0, None, at)


def hashes(tensor: Tensor, *, apart: bool = True) -> list[int]:
    call = call_of(tensor)
    groups = Groups.of(call, apart=apart)
    sums = StepSums(Memory())
    sums.add(call, groups)
    sent = sums.send()
    assert sent is not None
    assert sent.arrived
    whole: list[Segment] = [(-2, 0, tensor.shape[0])]
    return Layout([(SEGMENTS if apart else whole, groups.number)]).hashes(sent.read()).tolist()


def by_kernel(call: SiteCall, groups: Groups) -> list[int]:
    out = torch.zeros(groups.number + 1, dtype=torch.int64, device=DEVICE)
    _launch(call, groups, out, 1)
    assert int(out[0]) == 0
    return out[1:].tolist()


@given(st.sampled_from((torch.float32, torch.float16, torch.int64, torch.int32)), st.integers(1, 5), st.integers(1, 3))
def test_numpy_adds_up_the_same(dtype: torch.dtype, rows: int, width: int) -> None:
    tensor = torch.randn(rows, width).mul(100).to(dtype)
    call = call_of(tensor)
    assert row_sums(tensor.numpy()).tolist() == [each % 2**64 for each in reference(call, Groups(rows, 1)).tolist()]


@given(st.sampled_from(DTYPES[:-1]), st.integers(0, 5), st.integers(0, 2), st.integers(0, 14))
def test_one_bit_changes_one_segment(dtype: torch.dtype, row: int, column: int, bit: int) -> None:
    tensor = torch.arange(18).reshape(6, 3).to(dtype)
    changed, hit = flipped(tensor, row, column, bit)
    before, after = hashes(tensor), hashes(changed)
    assert [n for n in range(3) if before[n] != after[n]] == [hit]
    assert hashes(tensor, apart=False) != hashes(changed, apart=False)


def test_order_and_the_sign_of_zero_count() -> None:
    tensor = torch.arange(18.0).reshape(6, 3)
    assert hashes(tensor)[1] != hashes(tensor[[0, 1, 4, 3, 2, 5]])[1]
    assert hashes(torch.zeros(6, 3))[0] != hashes(-torch.zeros(6, 3))[0]
    assert hashes(torch.full((6, 3), torch.nan)) == hashes(torch.full((6, 3), torch.nan))


def test_a_share_has_the_same_hash_wherever_it_lies() -> None:
    rows = torch.arange(12.0).reshape(6, 2)
    elsewhere = torch.cat([rows[2:5], rows[5:], rows[:2]])
    sums = reference(call_of(elsewhere), Groups(6, 1)).numpy().view("uint64")
    moved: list[Segment] = [(0, 4, 6), (1, 0, 3), (-1, 3, 4)]
    assert Layout([(moved, 6)]).hashes(sums).tolist() == hashes(rows)


def test_calls_without_rows_have_a_hash() -> None:
    empty: list[Segment] = [(0, 0, 0)]
    one: list[Segment] = [(0, 0, 1)]
    sums = reference(call_of(torch.ones(1, 3)), Groups(1, 1)).numpy().view("uint64")
    first, second, third = Layout([(empty, 0), (one, 1), (empty, 0)]).hashes(sums)
    assert (first, third) == (0, 0)
    assert second != 0
    assert Layout([]).hashes(sums[:0]).tolist() == []


@pytest.mark.skipif(
    DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
    reason="no GPU, and Triton was imported before its interpreter could be chosen",
)
class TestKernel:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(1, 5), (3, 4096), (2, 9000), (7,), (2, 3, 5)])
    @pytest.mark.parametrize("apart", [True, False])
    def test_contiguous(self, dtype: torch.dtype, shape: tuple[int, ...], apart: bool) -> None:
        tensor = (100 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype).to(DEVICE)
        call = call_of(tensor)
        groups = Groups.of(call, apart=apart)
        assert by_kernel(call, groups) == reference(call, groups).tolist()

    @pytest.mark.parametrize("apart", [True, False])
    @pytest.mark.parametrize("index", [[7, 1, 2, 3], [[7, 1], [9, 0]]])
    def test_rows_of_a_pool(self, index: list[int], apart: bool) -> None:
        pool = torch.randn(3, 10, 2, 9, device=DEVICE)
        call = call_of(pool[:, :, :, :5], torch.tensor(index, device=DEVICE))
        dense = call_of(pool[:, :, :, :5].contiguous(), call.at)
        groups = Groups.of(call, apart=apart)
        expected = reference(dense, groups).tolist()
        assert len(expected) == (4 if apart else 1)
        assert by_kernel(dense, groups) == by_kernel(call, groups) == expected
        assert (
            by_kernel(call_of(pool[1:, :, 0], call.at), groups)
            == reference(call_of(pool[1:, :, 0].contiguous(), call.at), groups).tolist()
        )

    def test_rows_of_a_pool_whose_inner_dimensions_are_swapped(self) -> None:
        pool = torch.randn(2, 6, 3, 4, device=DEVICE).transpose(2, 3)
        call = call_of(pool, torch.tensor([5, 1], device=DEVICE))
        assert by_kernel(call, Groups(2, 1)) == reference(call, Groups(2, 1)).tolist()

    def test_a_row_beyond_a_pool_is_its_last(self) -> None:
        pool = torch.arange(12.0, device=DEVICE).reshape(2, 3, 2)
        beyond = call_of(pool, torch.tensor([-4, 3], device=DEVICE))
        inside = call_of(pool, torch.tensor([0, 2], device=DEVICE))
        assert by_kernel(beyond, Groups(2, 1)) == by_kernel(inside, Groups(2, 1))

    def test_nothing(self) -> None:
        empty = call_of(torch.empty(0, 3, device=DEVICE))
        assert by_kernel(empty, Groups.of(empty, apart=True)) == []
        assert by_kernel(empty, Groups.of(empty, apart=False)) == [0]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12))
@settings(max_examples=25)
def test_steps_of_any_size_arrive_in_order(sizes: list[int]) -> None:
    memory = Memory()
    for shift in range(2):  # the second uses the first's memory again
        sums = StepSums(memory)
        expected: list[int] = []
        for size in sizes:
            call = call_of(torch.arange(size) + shift)
            sums.add(call, Groups(size, 1))
            expected += reference(call, Groups(size, 1)).numpy().view("uint64").tolist()
        sent = sums.send()
        assert sent is not None
        assert sent.read().tolist() == expected
        memory.free(sent)
    assert StepSums(memory).send() is None


def test_what_a_graph_adds_up_comes_at_its_place() -> None:
    inside, outside = call_of(torch.arange(BLOCK + 5)), call_of(torch.tensor([3, 4]))
    captured = CapturedSums()
    captured.add(outside, Groups(2, 1))
    captured.add(inside, Groups(BLOCK + 5, 1))
    sums = StepSums(Memory())
    sums.add(outside, Groups(2, 1))
    sums.copy(captured)
    sums.add(outside, Groups(2, 1))
    sent = sums.send()
    assert sent is not None
    two = reference(outside, Groups(2, 1)).numpy().view("uint64").tolist()
    many = reference(inside, Groups(BLOCK + 5, 1)).numpy().view("uint64").tolist()
    assert sent.read().tolist() == two + two + many + two

"""Hashes on the host, and sums on a device: by torch, by the kernel (interpreted, without a GPU), on their way."""

import os
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.async_probe import SiteCall
from specdebug.diverge.hashes import (
    BLOCK,
    Captured,
    Groups,
    HostHasher,
    Memory,
    Staging,
    StepSums,
    _launch,
    list_hash,
    reference,
)
from specdebug.diverge.recording import Layout, Segment
from tests.diverge.samples import SEGMENTS, flipped

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)


def call_of(tensor: Tensor, at: Tensor | None = None) -> SiteCall:
    return SiteCall("kv_pool.write.k", "nan", tensor, 0, 0, None, at)


def sums_of(call: SiteCall, rows: int) -> list[int]:
    return reference(call, Groups(rows, 1)).numpy().view("uint64").tolist()


def on_device(tensor: Tensor, *, apart: bool = True) -> list[int]:
    call = call_of(tensor)
    groups = Groups.of(call, apart=apart)
    sums = StepSums(Memory())
    sums.add(call, groups)
    sent = sums.send()
    assert sent is not None
    assert sent.arrived
    whole: list[Segment] = [(-2, 0, tensor.shape[0])]
    return Layout([(SEGMENTS if apart else whole, groups.number)]).hashes(sent.read()).tolist()


def on_host(tensor: Tensor) -> list[int]:
    return HostHasher(tensor.shape, tensor.dtype, SEGMENTS).hashes(tensor.data_ptr())


def by_kernel(call: SiteCall, groups: Groups) -> list[int]:
    out = torch.zeros(groups.number + 1, dtype=torch.int64, device=DEVICE)
    _launch(call, groups, out, 1)
    assert int(out[0]) == 0
    return out[1:].tolist()


@pytest.mark.parametrize("narrow", [torch.int32, torch.int16])
def test_the_width_of_integers_does_not_count_in_sums(narrow: torch.dtype) -> None:
    tensor = torch.tensor([[3, -1], [-(2**15), 0]])
    assert sums_of(call_of(tensor), 2) == sums_of(call_of(tensor.to(narrow)), 2)
    assert sums_of(call_of(torch.empty(0, 3)), 0) == []
    assert reference(call_of(torch.empty(0, 3)), Groups(1, 0)).tolist() == [0]


@given(st.sampled_from(DTYPES[:-1]), st.integers(0, 5), st.integers(0, 2), st.integers(0, 14))
def test_one_bit_changes_one_segment(dtype: torch.dtype, row: int, column: int, bit: int) -> None:
    tensor = torch.arange(18).reshape(6, 3).to(dtype)
    changed, hit = flipped(tensor, row, column, bit)
    for hashes in (on_host, on_device):
        before, after = hashes(tensor), hashes(changed)
        assert [n for n in range(3) if before[n] != after[n]] == [hit]
    assert on_device(tensor, apart=False) != on_device(changed, apart=False)


@pytest.mark.parametrize("hashes", [on_host, on_device])
def test_order_and_the_sign_of_zero_count(hashes: Callable[[Tensor], list[int]]) -> None:
    tensor = torch.arange(18.0).reshape(6, 3)
    assert hashes(tensor)[1] != hashes(tensor[[0, 1, 4, 3, 2, 5]].contiguous())[1]
    assert hashes(torch.zeros(6, 3))[0] != hashes(-torch.zeros(6, 3))[0]
    assert hashes(torch.full((6, 3), torch.nan)) == hashes(torch.full((6, 3), torch.nan))


def test_calls_without_rows_have_a_hash() -> None:
    empty: list[Segment] = [(0, 0, 0)]
    one: list[Segment] = [(0, 0, 1)]
    sums = reference(call_of(torch.ones(1, 3)), Groups(1, 1)).numpy().view("uint64")
    first, second, third = Layout([(empty, 0), (one, 1), (empty, 0)]).hashes(sums)
    assert (first, third) == (0, 0)
    assert second != 0
    assert Layout([]).hashes(sums[:0]).tolist() == []
    nothing = torch.empty(0, 3)
    assert list_hash(nothing) == HostHasher(nothing.shape, nothing.dtype, empty).hashes(nothing.data_ptr())[0]
    assert Staging().copy(nothing)


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
        at = torch.tensor(index, device=DEVICE)
        groups = Groups.of(call_of(pool, at), apart=apart)
        for view in (pool[:, :, :, :5], pool[1:, :, 0], pool.transpose(2, 3)):
            dense = call_of(view.contiguous(), at)
            expected = reference(dense, groups).tolist()
            assert len(expected) == (4 if apart else 1)
            assert by_kernel(dense, groups) == by_kernel(call_of(view, at), groups) == expected

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
            expected += sums_of(call, size)
        sent = sums.send()
        assert sent is not None
        assert sent.read().tolist() == expected
        memory.free(sent)
    assert StepSums(memory).send() is None


def test_what_a_graph_adds_up_comes_at_its_place() -> None:
    inside, outside = call_of(torch.arange(BLOCK + 5)), call_of(torch.tensor([3, 4]))
    captured = Captured(lambda call: Groups.of(call, apart=True))
    captured.add(outside)
    captured.add(inside)
    sums = StepSums(Memory())
    sums.add(outside, Groups(2, 1))
    sums.copy(captured)
    sums.add(outside, Groups(2, 1))
    sent = sums.send()
    assert sent is not None
    two, many = sums_of(outside, 2), sums_of(inside, BLOCK + 5)
    assert sent.read().tolist() == two + two + many + two


def test_slots_of_every_layer_are_hashed() -> None:
    pool, at = torch.arange(4 * 10 * 2.0).reshape(4, 10, 2), torch.tensor([7, 1, 2, 3, 4, 6])

    def hashes() -> tuple[list[int], int]:
        rows = call_of(pool, at).rows()
        plan = HostHasher((6, 4, 2), pool.dtype, SEGMENTS, layers=4)
        return plan.hashes(rows.data_ptr()), list_hash(rows)

    before, whole = hashes()
    pool[3, 2, 1] = -1.0
    after, other = hashes()
    assert [n for n in range(3) if before[n] != after[n]] == [1]
    assert other != whole
    pool[2, 8] = -1.0  # nobody's slot
    assert hashes() == (after, other)


def test_copies_outlive_what_they_are_of() -> None:
    staging = Staging(size=64)
    tensors = [torch.arange(5) + number for number in range(9)]  # 40 bytes each: no two fit
    addresses = [staging.copy(tensor) for tensor in tensors]
    expected = [list_hash(tensor) for tensor in tensors]
    for tensor in tensors:
        tensor.zero_()
    whole: list[Segment] = [(0, 0, 5)]
    assert [HostHasher((5,), torch.int64, whole).hashes(at)[0] for at in addresses] == expected
    staging.clear()
    again = torch.arange(5)
    assert HostHasher((5,), torch.int64, whole).hashes(staging.copy(again)) == [list_hash(again)]


def test_rows_of_the_batch_are_taken_from_the_requests_own() -> None:
    index = torch.tensor([[0, 2, -1], [6, 8, -1]], dtype=torch.int32)
    apart: list[Segment] = [(0, 0, 1), (1, 1, 2)]
    for relative in (6, 0):
        one, other = HostHasher(index.shape, index.dtype, apart, relative=relative).hashes(index.data_ptr())
        assert (one == other) is (relative == 6)

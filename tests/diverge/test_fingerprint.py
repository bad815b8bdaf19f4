"""Hashes: one changed bit changes that segment's and no other's, wherever the rows lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdebug.diverge.fingerprint import DeviceHashes, HostPlan, picked, rows_of
from specdebug.diverge.owners import Segment

SEGMENTS: list[Segment] = [(0, 0, 2), (1, 2, 5), (-1, 5, 6)]
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int32)


def on_host(tensor: Tensor) -> list[int]:
    return HostPlan(tensor, SEGMENTS).hashes(tensor)


def on_device(tensor: Tensor) -> list[int]:
    ring = DeviceHashes(torch.device("cpu"), capacity=3)
    ring.put(tensor, SEGMENTS)
    assert not ring.room(1)
    return ring.take()


@given(st.sampled_from(DTYPES), st.integers(0, 5), st.integers(0, 2), st.integers(0, 14))
def test_one_bit_changes_one_segment(dtype: torch.dtype, row: int, column: int, bit: int) -> None:
    tensor = torch.arange(18).reshape(6, 3).to(dtype)
    changed = tensor.clone()
    size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    changed.view(size)[row, column] ^= 1 << bit
    hit = next(n for n, (_, start, stop) in enumerate(SEGMENTS) if start <= row < stop)
    for hashes in (on_host, on_device):
        before, after = hashes(tensor), hashes(changed)
        assert [n for n in range(3) if before[n] != after[n]] == [hit]


@pytest.mark.parametrize("hashes", [on_host, on_device])
def test_order_and_the_sign_of_zero_count(hashes: Callable[[Tensor], list[int]]) -> None:
    tensor = torch.arange(18.0).reshape(6, 3)
    assert hashes(tensor)[1] != hashes(tensor[[0, 1, 4, 3, 2, 5]].contiguous())[1]
    assert hashes(torch.zeros(6, 3))[0] != hashes(-torch.zeros(6, 3))[0]
    assert hashes(torch.full((6, 3), torch.nan)) == hashes(torch.full((6, 3), torch.nan))


def test_slots_of_every_layer_are_hashed() -> None:
    pool, at = torch.arange(4 * 10 * 2.0).reshape(4, 10, 2), torch.tensor([7, 1, 2, 3, 4, 99])
    first = picked(pool, at)
    plan = HostPlan(first, SEGMENTS, layers=4)
    before = plan.hashes(first)
    pool[3, 2, 1] = -1.0
    after = plan.hashes(picked(pool, at))
    assert [n for n in range(3) if before[n] != after[n]] == [1]
    pool[2, 8] = -1.0  # nobody's slot
    assert plan.hashes(picked(pool, at)) == after
    assert rows_of(pool, at)[5, 0].tolist() == pool[0, 9].tolist()  # a slot behind the pool is its last


def test_rows_of_the_batch_are_taken_from_the_requests_own() -> None:
    index = torch.tensor([[0, 2, -1], [6, 8, -1]], dtype=torch.int32)
    apart: list[Segment] = [(0, 0, 1), (1, 1, 2)]
    one, other = HostPlan(index, apart, relative=6).hashes(index)
    assert one == other
    assert HostPlan(index, apart).hashes(index)[0] != HostPlan(index, apart).hashes(index)[1]
    ring = DeviceHashes(torch.device("cpu"))
    ring.put(index, apart, relative=6)
    one, other = ring.take()
    assert one == other


def test_nothing_has_a_hash_too() -> None:
    empty = torch.empty(0, 3)
    assert len(HostPlan(empty, [(0, 0, 0)]).hashes(empty)) == 1

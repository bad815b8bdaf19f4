"""Hashes: one changed bit changes that segment's and no other's, wherever the rows lie."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdebug.async_probe import SiteCall
from specdebug.diverge.fingerprint import HostHasher, Staging, list_hash, rows_of
from specdebug.diverge.owners import Segment
from tests.diverge.samples import SEGMENTS, flipped

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int32)


def on_host(tensor: Tensor) -> list[int]:
    return HostHasher(tensor.shape, tensor.dtype, SEGMENTS).hashes(tensor.data_ptr())


@given(st.sampled_from(DTYPES), st.integers(0, 5), st.integers(0, 2), st.integers(0, 14))
def test_one_bit_changes_one_segment(dtype: torch.dtype, row: int, column: int, bit: int) -> None:
    tensor = torch.arange(18).reshape(6, 3).to(dtype)
    changed, hit = flipped(tensor, row, column, bit)
    before, after = on_host(tensor), on_host(changed)
    assert [n for n in range(3) if before[n] != after[n]] == [hit]


def test_order_and_the_sign_of_zero_count() -> None:
    tensor = torch.arange(18.0).reshape(6, 3)
    assert on_host(tensor)[1] != on_host(tensor[[0, 1, 4, 3, 2, 5]].contiguous())[1]
    assert on_host(torch.zeros(6, 3))[0] != on_host(-torch.zeros(6, 3))[0]
    assert on_host(torch.full((6, 3), torch.nan)) == on_host(torch.full((6, 3), torch.nan))


def test_slots_of_every_layer_are_hashed() -> None:
    pool, at = torch.arange(4 * 10 * 2.0).reshape(4, 10, 2), torch.tensor([7, 1, 2, 3, 4, 6])

    def hashes() -> tuple[list[int], int]:
        rows = SiteCall("kv_pool.write.k", "nan", pool, 0, 0, None, at).rows()
        plan = HostHasher((6, 4, 2), pool.dtype, SEGMENTS, layers=4)
        return plan.hashes(rows.data_ptr()), list_hash(rows)

    before, whole = hashes()
    pool[3, 2, 1] = -1.0
    after, other = hashes()
    assert [n for n in range(3) if before[n] != after[n]] == [1]
    assert other != whole
    pool[2, 8] = -1.0  # nobody's slot
    assert hashes() == (after, other)


def test_rows_of_slots_come_first() -> None:
    pool, at = torch.arange(4 * 10 * 2.0).reshape(4, 10, 2), torch.tensor([[7, 1], [2, 3]])
    rows = rows_of(SiteCall("kv_pool.write.k", "nan", pool, 0, 0, None, at))
    assert rows.shape == (4, 4, 2)
    assert rows[2, 3].tolist() == pool[3, 2].tolist()
    assert rows_of(SiteCall("draft.bonus", "oob", torch.tensor(3), 0, 9, None, None)).shape == (1,)


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


def test_a_list_of_any_length_has_a_hash() -> None:
    one, other = torch.arange(7, dtype=torch.int32), torch.arange(8, dtype=torch.int32)
    assert list_hash(one) != list_hash(other)


def test_rows_of_the_batch_are_taken_from_the_requests_own() -> None:
    index = torch.tensor([[0, 2, -1], [6, 8, -1]], dtype=torch.int32)
    apart: list[Segment] = [(0, 0, 1), (1, 1, 2)]
    one, other = HostHasher(index.shape, index.dtype, apart, relative=6).hashes(index.data_ptr())
    assert one == other
    one, other = HostHasher(index.shape, index.dtype, apart).hashes(index.data_ptr())
    assert one != other


def test_nothing_has_a_hash_too() -> None:
    empty = torch.empty(0, 3)
    assert list_hash(empty) == HostHasher(empty.shape, empty.dtype, [(0, 0, 0)]).hashes(empty.data_ptr())[0]
    assert Staging().copy(empty)

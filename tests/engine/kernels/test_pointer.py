"""Raw access reaches the whole allocation behind a view, and not one element more."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.errors import EngineError, IllegalAddress
from specdebug.engine.kernels.pointer import flat_storage, raw_block, raw_gather, raw_scatter, raw_store


def _window(dtype: torch.dtype = torch.int64) -> tuple[torch.Tensor, torch.Tensor]:
    """24 elements, and a 2 x 3 view of them that begins at element 8 with rows 6 apart."""
    whole = torch.arange(24).to(dtype)
    return whole, whole[8:20].view(2, 6)[:, :3]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.bool])
def test_flat_storage_is_the_allocation_itself(dtype: torch.dtype) -> None:
    whole, view = _window(dtype)
    flat = flat_storage(view)
    assert flat.dtype == dtype
    assert torch.equal(flat, whole)
    flat[0] = 1
    assert whole[0] == 1


def test_an_allocation_of_bytes_seen_as_words() -> None:
    raw = torch.zeros(64, dtype=torch.uint8)
    view = raw[16:32].view(torch.int32)
    raw_block(view, 4, 2, "test").fill_(-1)
    assert raw.nonzero().flatten().tolist() == list(range(32, 40))


def test_a_block_counts_from_the_first_element_of_the_view_and_ignores_its_shape() -> None:
    whole, view = _window()
    assert raw_block(view, 0, 8, "test").tolist() == [8, 9, 10, 11, 12, 13, 14, 15]
    assert raw_block(view, -8, 2, "test").tolist() == [0, 1]
    raw_block(view, 15, 1, "test").fill_(-5)
    assert whole[23] == -5
    assert raw_block(view, 16, 0, "test").numel() == 0


@pytest.mark.parametrize(("offset", "length"), [(-9, 1), (15, 2), (16, 1), (0, 17), (0, -1), (2**62, 1)])
def test_a_block_that_leaves_the_allocation_is_an_illegal_address(offset: int, length: int) -> None:
    _, view = _window()
    with pytest.raises(IllegalAddress, match=r"illegal address in a\.site: elements \[") as caught:
        raw_block(view, offset, length, "a.site")
    assert caught.value.site == "a.site"
    assert isinstance(caught.value, EngineError)


@given(st.lists(st.tuples(st.integers(-8, 15), st.integers(-99, 99)), max_size=12))
@settings(max_examples=60)
def test_scatter_and_gather_agree_with_one_element_at_a_time(writes: list[tuple[int, int]]) -> None:
    whole, view = _window()
    expected = whole.clone()
    unique = dict(writes)  # which of two writes to one place wins is not promised
    for offset, value in unique.items():
        expected[8 + offset] = value
    offsets = torch.tensor(list(unique), dtype=torch.int64)
    raw_scatter(view, offsets, torch.tensor(list(unique.values()), dtype=torch.int32), "test")
    assert torch.equal(whole, expected)
    if unique:
        shaped = offsets.view(-1, 1).expand(-1, 2)
        read = raw_gather(view, shaped, "test")
        assert read.shape == shaped.shape
        assert read[:, 1].tolist() == list(unique.values())


@pytest.mark.parametrize("offset", [-9, 16, 2**40, -(2**40)])
def test_one_bad_offset_among_good_ones_is_an_illegal_address(offset: int) -> None:
    _, view = _window()
    offsets = torch.tensor([0, offset, 3])
    for access in (
        lambda: raw_scatter(view, offsets, torch.zeros(3, dtype=torch.int64), "a.site"),
        lambda: raw_gather(view, offsets, "a.site"),
    ):
        with pytest.raises(
            IllegalAddress, match=rf"in a\.site: offsets {min(offset, 0)}\.\.{max(offset, 3)} of a buffer of 6"
        ):
            access()


def test_nothing_to_write_is_fine() -> None:
    whole, view = _window()
    empty = torch.empty((0, 3), dtype=torch.int64)
    raw_scatter(view, empty, empty, "test")
    assert torch.equal(whole, torch.arange(24))
    assert raw_gather(view, empty, "test").shape == (0, 3)


@pytest.mark.parametrize(("offset", "landed"), [(0, 5), (12, 4), (15, 1), (16, 0), (40, 0), (-100, 0)])
def test_a_store_that_runs_off_its_allocation_does_its_damage_first(offset: int, landed: int) -> None:
    """The window begins at element 8 of 24: 16 elements from there to the end of the allocation."""
    whole, view = _window()
    before, values = whole.clone(), torch.full((5,), -1)
    with nullcontext() if landed == 5 else pytest.raises(IllegalAddress, match=r"in a\.site: elements"):
        raw_store(view, offset, values, "a.site")
    start = int(view.storage_offset()) + offset
    before[start : start + landed] = -1
    assert torch.equal(whole, before)

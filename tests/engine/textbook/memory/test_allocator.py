"""Allocators against a model that is nothing but a set of owned pages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.textbook.memory.allocator import DoubleFree, InvalidFree, SlotAllocator

PAGE_SIZES = [1, 4, 16]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_fresh_pool_hands_out_ascending_slots_and_never_page_zero(page_size: int) -> None:
    allocator = SlotAllocator(3 * page_size, page_size)
    slots = allocator.alloc(3 * page_size)
    assert slots is not None
    assert slots.dtype == torch.int64
    assert slots.tolist() == list(range(page_size, 4 * page_size))
    assert allocator.num_free == 0
    assert allocator.alloc(page_size) is None
    assert allocator.alloc(0).tolist() == []  # type: ignore[union-attr]


def test_shortage_changes_nothing() -> None:
    allocator = SlotAllocator(8, 4)
    allocator.alloc(4)
    before = allocator.free_slots()
    assert allocator.alloc(8) is None
    assert allocator.num_free == 4
    assert torch.equal(allocator.free_slots(), before)


def test_freeing_one_slot_frees_its_page() -> None:
    allocator = SlotAllocator(8, 4)
    slots = allocator.alloc(8)
    assert slots is not None
    allocator.free(slots[5:6])
    assert allocator.free_slots().tolist() == [8, 9, 10, 11]
    allocator.free(slots[:3])
    assert allocator.num_free == 8


def test_returned_slots_are_not_a_view_of_the_books() -> None:
    allocator = SlotAllocator(4, 1)
    slots = allocator.alloc(2)
    assert slots is not None
    kept = slots.clone()
    slots.fill_(99)
    allocator.free(kept)
    assert allocator.alloc(4).tolist() == [1, 2, 3, 4]  # type: ignore[union-attr]


def test_released_slots_come_back_in_ascending_order() -> None:
    allocator = SlotAllocator(6, 1)
    allocator.alloc(5)
    allocator.free(torch.tensor([4, 1]))
    allocator.free(torch.tensor([2], dtype=torch.int32))
    assert allocator.alloc(4).tolist() == [1, 2, 4, 6]  # type: ignore[union-attr]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_double_free_names_the_slot_and_frees_nothing(page_size: int) -> None:
    allocator = SlotAllocator(4 * page_size, page_size)
    slots = allocator.alloc(4 * page_size)
    assert slots is not None
    victim = slots[page_size : page_size + 1]
    allocator.free(victim)
    with pytest.raises(DoubleFree, match=f"slot {page_size * 2} is freed but not allocated"):
        allocator.free(torch.cat([slots[:1], victim]))
    assert allocator.num_free == page_size


def test_a_slot_named_twice_in_one_call_is_a_double_free_for_tokens_only() -> None:
    tokens = SlotAllocator(4, 1)
    tokens.alloc(4)
    with pytest.raises(DoubleFree, match="slot 3 is freed twice"):
        tokens.free(torch.tensor([3, 1, 3]))
    assert tokens.num_free == 0
    paged = SlotAllocator(8, 4)
    paged.alloc(8)
    paged.free(torch.tensor([4, 5, 4]))
    assert paged.num_free == 4


@pytest.mark.parametrize("slot", [0, 3, 12, -1, 10**12])
def test_slots_that_are_never_handed_out_cannot_be_freed(slot: int) -> None:
    allocator = SlotAllocator(8, 4)
    allocator.alloc(8)
    with pytest.raises(InvalidFree, match=rf"slot {slot} cannot be freed: usable slots are 4\.\.11"):
        allocator.free(torch.tensor([4, slot]))
    assert allocator.num_free == 0


def test_arguments_that_are_no_whole_pages_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of page_size 4"):
        SlotAllocator(10, 4)
    with pytest.raises(ValueError, match="multiple of page_size 4"):
        SlotAllocator(8, 4).alloc(6)
    with pytest.raises(ValueError, match="-4"):
        SlotAllocator(8, 4).alloc(-4)


def test_clear_frees_everything() -> None:
    allocator = SlotAllocator(8, 4)
    allocator.alloc(8)
    allocator.free(torch.tensor([8]))
    allocator.clear()
    assert allocator.alloc(8).tolist() == list(range(4, 12))  # type: ignore[union-attr]


@settings(max_examples=150)
@given(
    page_size=st.sampled_from(PAGE_SIZES),
    num_pages=st.integers(1, 12),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 2**16)), max_size=40),
)
def test_against_a_set_of_owned_pages(page_size: int, num_pages: int, steps: list[tuple[bool, int, int]]) -> None:
    allocator = SlotAllocator(num_pages * page_size, page_size)
    everything = set(range(page_size, (num_pages + 1) * page_size))
    held: list[list[int]] = []  # one list of slots per successful alloc
    for is_alloc, count, pick in steps:
        owned = {slot for slots in held for slot in slots}
        if is_alloc:
            got = allocator.alloc(count * page_size)
            if count * page_size > len(everything - owned):
                assert got is None
            else:
                assert got is not None
                slots = got.tolist()
                assert len(slots) == count * page_size == len(set(slots))
                assert set(slots) <= everything - owned
                for start in range(0, len(slots), page_size):
                    page = slots[start : start + page_size]
                    assert page[0] % page_size == 0
                    assert page == list(range(page[0], page[0] + page_size))
                held.append(slots)
        elif held:
            slots = held.pop(pick % len(held))
            # Naming one slot of each page must be enough.
            named = [start + pick % page_size for start in slots[::page_size]]
            allocator.free(torch.tensor(named, dtype=torch.int64))
            if named:
                with pytest.raises(DoubleFree):
                    allocator.free(torch.tensor(named[:1]))
        free = everything - {slot for slots in held for slot in slots}
        assert allocator.num_free == len(free)
        assert allocator.free_slots().tolist() == sorted(free)


calls = st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 2**16)), max_size=12)


def act(allocator: SlotAllocator, held: list[torch.Tensor], steps: list[tuple[bool, int, int]]) -> list[list[int]]:
    """Allocate and free as told; the ids that came."""
    came = []
    for is_alloc, count, pick in steps:
        if is_alloc:
            slots = allocator.alloc(count * allocator.page_size)
            came.append([] if slots is None else slots.tolist())
            if slots is not None and count:
                held.append(slots)
        elif held:
            allocator.free(held.pop(pick % len(held)))
    return came


@settings(max_examples=150)
@given(page_size=st.sampled_from(PAGE_SIZES), num_pages=st.integers(1, 10), before=calls, between=calls, after=calls)
def test_restored_books_go_on_as_if_nothing_had_been_between(
    page_size: int, num_pages: int, before: list, between: list, after: list
) -> None:
    one, other = (SlotAllocator(num_pages * page_size, page_size) for _ in range(2))
    held: list[list[torch.Tensor]] = [[], []]
    assert act(one, held[0], before) == act(other, held[1], before)
    books, free = one.backup(), one.free_slots()
    for _ in range(2):  # books serve more than once
        act(one, list(held[0]), between)
        one.restore(books)
        assert torch.equal(one.free_slots(), free)
        assert one.num_free == free.numel()
        assert sorted(one.listed()) == sorted(other.listed())
    assert act(one, held[0], after) == act(other, held[1], after)
    assert torch.equal(one.free_slots(), other.free_slots())

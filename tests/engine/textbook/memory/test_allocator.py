"""Allocators against a model that is nothing but a set of owned pages; one over two pools releases slots in both."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.errors import EngineError
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.textbook.memory.allocator import DoubleFree, InvalidFree, KVMemory, SlotAllocator
from specdebug.engine.textbook.memory.mha_pool import MHAPool

PAGE_SIZES = [1, 4, 16]


def taken(allocator: SlotAllocator | KVMemory, count: int) -> torch.Tensor:
    slots = allocator.alloc(count)
    assert slots is not None
    return slots


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_a_fresh_pool_hands_out_ascending_slots_and_never_page_zero(page_size: int) -> None:
    allocator = SlotAllocator(3 * page_size, page_size)
    slots = taken(allocator, 3 * page_size)
    assert slots.dtype == torch.int64
    assert slots.tolist() == list(range(page_size, 4 * page_size))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_double_free_names_the_slot_and_frees_nothing(page_size: int) -> None:
    allocator = SlotAllocator(4 * page_size, page_size)
    slots = taken(allocator, 4 * page_size)
    victim = slots[page_size : page_size + 1]
    allocator.free(victim)
    with pytest.raises(DoubleFree, match=f"slot {page_size * 2} is freed but not allocated"):
        allocator.free(torch.cat([slots[:1], victim]))
    assert allocator.num_free == page_size


def test_a_slot_named_twice_in_one_call_is_a_double_free_for_tokens_only() -> None:
    tokens, paged = SlotAllocator(4, 1), SlotAllocator(8, 4)
    taken(tokens, 4)
    with pytest.raises(DoubleFree, match="slot 3 is freed twice"):
        tokens.free(torch.tensor([3, 1, 3]))
    assert tokens.num_free == 0
    taken(paged, 8)
    paged.free(torch.tensor([4, 5, 4]))
    assert paged.num_free == 4


@pytest.mark.parametrize("slot", [0, 3, 12, -1, 10**12])
def test_slots_that_are_never_handed_out_cannot_be_freed(slot: int) -> None:
    allocator = SlotAllocator(8, 4)
    taken(allocator, 8)
    with pytest.raises(InvalidFree, match=rf"slot {slot} cannot be freed: usable slots are 4\.\.11"):
        allocator.free(torch.tensor([4, slot]))
    assert allocator.num_free == 0


def test_arguments_that_are_no_whole_pages_are_refused() -> None:
    for call in (
        lambda: SlotAllocator(10, 4),
        lambda: SlotAllocator(8, 4).alloc(6),
        lambda: SlotAllocator(8, 4).alloc(-4),
    ):
        with pytest.raises(ValueError, match="multiple of page_size 4"):
            call()


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


PAGE, SLOTS = 4, 12


def memory_of(draft: bool = True) -> KVMemory:
    """Pools of NaN, all of which is set to zero."""
    sizes = {"num_slots": SLOTS, "page_size": PAGE, "dtype": torch.float32, "fill": FillPolicy("nan")}
    pools = [MHAPool(num_layers=1, num_kv_heads=1, head_dim=2, **sizes) for _ in range(2)]
    for pool in pools:
        pool.zero(torch.arange(SLOTS + PAGE))
    return KVMemory(SlotAllocator(SLOTS, PAGE), pools[0], pools[1] if draft else None)


def poisoned(pool: MHAPool | None) -> list[int]:
    return [] if pool is None else pool.k[0].isnan().all(dim=-1).all(dim=-1).nonzero().flatten().tolist()


@pytest.mark.parametrize("draft", [True, False])
def test_released_slots_are_poisoned_in_every_pool_and_what_is_not_owned_in_none(draft: bool) -> None:
    memory = memory_of(draft)
    slots = taken(memory, 8)
    memory.free(torch.empty(0, dtype=torch.int64))
    with pytest.raises(EngineError):
        memory.free(torch.tensor([12]))
    assert poisoned(memory.target) == []
    memory.free(slots[4:].to(torch.int32))
    assert poisoned(memory.target) == [8, 9, 10, 11]
    assert poisoned(memory.draft) == ([8, 9, 10, 11] if draft else [])
    assert memory.alloc(12) is None
    assert set(taken(memory, 8).tolist()) == set(range(8, 16))


def test_borrowed_slots_are_free_again_and_their_draft_kv_is_poisoned() -> None:
    memory = memory_of()
    held = taken(memory, PAGE)
    with memory.borrow_to_draft(PAGE) as slots:
        assert memory.allocator.num_free == PAGE
        assert not set(slots.tolist()) & set(held.tolist())
    assert memory.allocator.num_free == 2 * PAGE
    assert (poisoned(memory.draft), poisoned(memory.target)) == (slots.tolist(), [])
    assert taken(memory, PAGE).tolist() == slots.tolist(), "the next ones are the same"
    with pytest.raises(EngineError, match="needs 16 KV slots and 4 are free"), memory.borrow_to_draft(16):
        pass

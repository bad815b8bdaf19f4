"""One allocator over two pools: a released slot is released in both."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.errors import EngineError
from specdebug.engine.memory.arena import FillPolicy
from specdebug.engine.textbook.memory.allocator import KVMemory, SlotAllocator
from specdebug.engine.textbook.memory.mha_pool import MHAPool

PAGE, SLOTS = 4, 12


def _pool() -> MHAPool:
    return MHAPool(
        num_layers=1,
        num_slots=SLOTS,
        page_size=PAGE,
        num_kv_heads=1,
        head_dim=2,
        dtype=torch.float32,
        fill=FillPolicy("nan"),
    )


def _poisoned(pool: MHAPool) -> list[int]:
    return pool.k[0].isnan().all(dim=-1).all(dim=-1).nonzero().flatten().tolist()


def test_released_slots_are_poisoned_in_both_pools() -> None:
    memory = KVMemory(SlotAllocator(SLOTS, PAGE), _pool(), _pool())
    slots = memory.alloc(8)
    assert slots is not None
    assert memory.draft is not None
    for pool in (memory.target, memory.draft):
        pool.zero(torch.arange(SLOTS + PAGE))
    memory.free(slots[4:].to(torch.int32))
    assert _poisoned(memory.target) == _poisoned(memory.draft) == [8, 9, 10, 11]
    assert memory.alloc(12) is None
    again = memory.alloc(8)
    assert again is not None
    assert set(again.tolist()) == set(range(8, 16))


def test_there_need_be_no_draft() -> None:
    memory = KVMemory(SlotAllocator(SLOTS, PAGE), _pool(), None)
    slots = memory.alloc(4)
    assert slots is not None
    memory.target.zero(slots)
    memory.free(slots)
    assert _poisoned(memory.target) == list(range(4, 16))


def test_what_nobody_owns_is_not_poisoned_either() -> None:
    memory = KVMemory(SlotAllocator(SLOTS, PAGE), _pool(), None)
    memory.target.zero(torch.arange(SLOTS + PAGE))
    memory.free(torch.empty(0, dtype=torch.int64))
    with pytest.raises(EngineError):
        memory.free(torch.tensor([4]))
    assert _poisoned(memory.target) == []


def test_borrowed_slots_are_free_again_and_their_draft_kv_is_poisoned() -> None:
    memory = KVMemory(SlotAllocator(SLOTS, PAGE), _pool(), _pool())
    held = memory.alloc(PAGE)
    assert held is not None
    assert memory.draft is not None
    for pool in (memory.target, memory.draft):
        pool.zero(torch.arange(SLOTS + PAGE))
    with memory.borrow_to_draft(PAGE) as slots:
        assert memory.allocator.num_free == PAGE
        assert not set(slots.tolist()) & set(held.tolist())
    assert memory.allocator.num_free == 2 * PAGE
    assert _poisoned(memory.draft) == slots.tolist()
    assert _poisoned(memory.target) == [], "nobody wrote target KV there"
    again = memory.alloc(PAGE)
    assert again is not None
    assert again.tolist() == slots.tolist(), "the next ones are the same"


def test_borrowing_more_than_is_free_is_an_engine_error() -> None:
    memory = KVMemory(SlotAllocator(SLOTS, PAGE), _pool(), _pool())
    with pytest.raises(EngineError, match="needs 16 KV slots and 12 are free"), memory.borrow_to_draft(16):
        pass
    assert memory.allocator.num_free == SLOTS

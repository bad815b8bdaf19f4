"""One allocator over two pools: a released slot is released in both."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.errors import EngineError
from specdebug.engine.memory.allocator import SlotAllocator
from specdebug.engine.memory.fill import FillPolicy
from specdebug.engine.memory.kv_memory import KVMemory
from specdebug.engine.memory.mha_pool import MHAPool

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

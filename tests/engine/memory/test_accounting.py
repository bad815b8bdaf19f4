"""The conservation laws find what is planted, and nothing else."""

from __future__ import annotations

import pytest
import torch

from specdebug.engine.request import Request
from tests.engine.parts import Parts, make_config

PROMPT = list(range(20, 29))  # 9 tokens: 8 cached slots, one held


@pytest.fixture(params=[1, 4])
def parts(request: pytest.FixtureRequest) -> Parts:
    return Parts(make_config(page_size=request.param, num_slots=32))


@pytest.fixture
def holder(parts: Parts) -> Request:
    return parts.run(PROMPT)


def test_a_healthy_engine_breaks_no_law(parts: Parts, holder: Request) -> None:
    assert parts.laws(holder) == []
    parts.cache.release(holder, keep=False)
    assert parts.laws(holder) == [], "a request without a row holds nothing"
    assert parts.laws() == []


def test_a_forgotten_holder_is_a_lost_page(parts: Parts, holder: Request) -> None:
    page, slot = parts.config.page_size, int(parts.req_to_token.slots(holder.row, 8, 9))
    assert parts.laws() == [f"ownership: {page} slots have no owner (first: {slot})"]


def test_a_slot_freed_while_held_has_two_owners(parts: Parts, holder: Request) -> None:
    slot = parts.req_to_token.slots(holder.row, 8, 9)
    parts.memory.allocator.free(slot)
    assert parts.laws(holder) == [f"ownership: slot {int(slot)} has 2 owners"]


def test_a_slot_freed_while_cached_has_two_owners(parts: Parts, holder: Request) -> None:
    slot = parts.req_to_token.slots(holder.row, 0, 1)
    parts.memory.allocator.free(slot)
    assert parts.laws(holder) == [f"ownership: slot {int(slot)} has 2 owners"]


def test_two_requests_on_one_slot(parts: Parts, holder: Request) -> None:
    other = parts.run([1, 2])
    parts.req_to_token.write(other.row, 0, parts.req_to_token.slots(holder.row, 8, 9))
    other.protected_len = 0
    problems = parts.laws(holder, other)
    slot = int(parts.req_to_token.slots(holder.row, 8, 9))
    assert f"ownership: slot {slot} has 2 owners" in problems


def test_a_taken_slot_that_nobody_holds_is_lost(parts: Parts, holder: Request) -> None:
    page = parts.config.page_size
    taken = parts.memory.allocator.alloc(2 * page)
    assert taken is not None
    assert parts.laws(holder) == [f"ownership: {2 * page} slots have no owner (first: {int(taken[0])})"]


@pytest.mark.parametrize("position", [0, 7, 8])
def test_a_committed_position_at_padding_is_dead(parts: Parts, holder: Request, position: int) -> None:
    parts.req_to_token.write(holder.row, position, torch.tensor([0]))
    problems = parts.laws(holder)
    assert f"liveness: {holder.rid} position {position} of 9 points outside the pool" in problems
    owned = position == 8
    assert any(problem.startswith("ownership:") for problem in problems) is owned


def test_a_committed_position_beyond_the_pool_is_dead(parts: Parts, holder: Request) -> None:
    parts.req_to_token.write(holder.row, 3, torch.tensor([parts.memory.target.size]))
    assert parts.laws(holder) == [f"liveness: {holder.rid} position 3 of 9 points outside the pool"]


def test_a_held_cell_beyond_the_committed_length_must_be_in_the_pool_too(parts: Parts, holder: Request) -> None:
    assert parts.grow(holder, 16)
    parts.req_to_token.write(holder.row, 15, torch.tensor([-7]))
    assert f"liveness: {holder.rid} holds slot -7, outside the pool" in parts.laws(holder)


def test_cells_beyond_what_is_allocated_mean_nothing(parts: Parts, holder: Request) -> None:
    parts.req_to_token.write(holder.row, holder.kv_allocated, torch.tensor([0, -1]))
    assert parts.laws(holder) == []


@pytest.mark.parametrize("counter", ["evictable_size", "protected_size"])
def test_lock_counters_that_drift_are_noticed(parts: Parts, holder: Request, counter: str) -> None:
    radix = parts.cache.radix
    setattr(radix, counter, getattr(radix, counter) + 1)
    assert parts.laws(holder) == ["locks: evictable + protected = 9, cached = 8"]


def test_a_node_that_lost_slots_breaks_both_laws(parts: Parts, holder: Request) -> None:
    node = holder.node
    assert node is not None
    lost = int(node.slots[-1])
    node.slots = node.slots[:-1]
    assert parts.laws(holder) == [
        f"ownership: 1 slots have no owner (first: {lost})",
        "locks: evictable + protected = 8, cached = 7",
    ]

"""The conservation laws find what is planted, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.errors import EngineError
from specdebug.engine.memory.accounting import Recency, check_others
from specdebug.engine.textbook.memory.prefix_cache import PrefixCache
from specdebug.engine.textbook.memory.radix_cache import RadixCache, TreeNode
from specdebug.engine.textbook.request import Request, Status
from tests.engine.parts import Parts, make_config
from tests.engine.planting import plant

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
    assert parts.laws() == []
    assert parts.laws(holder) == ["rows: r1 holds row 0, which pads batches"]


def test_a_forgotten_holder_is_a_lost_page(parts: Parts, holder: Request) -> None:
    page, slot = parts.config.page_size, int(parts.req_to_token.slots(holder.row, 8, 9))
    assert parts.laws() == [
        f"ownership: {page} slots have no owner (first: {slot})",
        "rows: row 1 is lost: neither free nor held by a request that prefills or runs",
        "locks: radix node 1 has lock_ref 1, 0 requests read it",
    ]


def test_a_request_that_has_ended_or_waits_holds_nothing(parts: Parts, holder: Request) -> None:
    row, positions, node = holder.row, holder.kv_len, holder.node
    parts.cache.release(holder, keep=False)
    holder.status = Status.WAITING
    assert check_others([holder], [holder]) == []
    assert check_others([holder], []) == ["rows: r1 has ended, and its status is WAITING"]
    holder.status = Status.FINISHED
    assert check_others([holder], []) == []
    assert check_others([holder], [holder]) == ["rows: r1 waits, and its status is FINISHED"]
    holder.node = node
    assert check_others([holder], []) == ["rows: r1 has ended, and reads the radix tree"]
    holder.row, holder.kv_len = row, positions
    assert check_others([holder], []) == [f"rows: r1 has ended, and has row {row} and {positions} positions"]


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
        "liveness: r1 has 8 protected positions, the tree holds 7 of them",
    ]


def test_a_row_that_is_held_twice_or_freed_while_held_is_named_with_its_holders(parts: Parts, holder: Request) -> None:
    other = parts.run([1, 2])
    held, other.row = other.row, holder.row
    problems = parts.laws(holder, other)
    assert f"rows: row {holder.row} is held by r1 and r2" in problems
    assert f"rows: row {held} is lost: neither free nor held by a request that prefills or runs" in problems
    other.row = held
    parts.req_to_token.free_row(held)
    assert parts.laws(holder, other) == [f"rows: row {held} is held by the free list and r2"]


def test_a_lock_that_was_not_taken_or_given_back_twice_is_named_with_the_readers(parts: Parts, holder: Request) -> None:
    radix, node = parts.cache.radix, holder.node
    assert node is not None
    radix.lock(node)
    assert parts.laws(holder) == [f"locks: radix node {node.serial} has lock_ref 2, 1 requests read it: r1"]
    radix.unlock(node)
    radix.unlock(node)
    assert parts.laws(holder) == [f"locks: radix node {node.serial} has lock_ref 0, 1 requests read it: r1"]
    node.lock_ref = -1
    assert f"locks: radix node {node.serial} has lock_ref -1, 1 requests read it: r1" in parts.laws(holder)


def test_a_node_that_is_evicted_while_it_is_read_is_missed(parts: Parts, holder: Request) -> None:
    radix, node = parts.cache.radix, holder.node
    assert node is not None
    radix.unlock(node)
    parts.memory.free(radix.evict(1))
    assert f"locks: r1 reads radix node {node.serial}, which is not in the tree" in parts.laws(holder)


def test_counters_that_drift_apart_are_noticed_too(parts: Parts, holder: Request) -> None:
    parts.cache.radix.evictable_size += 3
    parts.cache.radix.protected_size -= 3
    assert parts.laws(holder) == ["locks: evictable = 3, but nodes without a lock hold 0 slots"]


def test_a_prefix_cell_that_is_not_the_tree_s_slot_is_named(parts: Parts, holder: Request) -> None:
    own, cached = (int(parts.req_to_token.slots(holder.row, at, at + 1)) for at in (8, 2))
    parts.req_to_token.write(holder.row, 2, torch.tensor([own]))
    assert parts.laws(holder) == [f"liveness: r1 position 2 reads slot {own}, it is cached in slot {cached}"]


def test_a_page_that_is_listed_as_free_twice_is_named(parts: Parts, holder: Request) -> None:
    allocator = parts.memory.allocator
    allocator._released.append(allocator.listed()[:1])
    (twice, counted) = parts.laws(holder)
    assert twice == f"ownership: page {allocator.listed()[0]} is listed as free 2 times"
    assert counted.startswith(f"ownership: num_free is {allocator.num_free}, ")


def test_leaves_that_are_listed_wrongly_and_times_out_of_order_are_named(parts: Parts, holder: Request) -> None:
    node = holder.node
    assert node is not None
    parts.cache.release(holder, keep=False)
    assert parts.laws() == []
    leaf = parts.cache.radix._leaves.pop(node.serial)
    assert parts.laws() == [f"order: radix node {node.serial} can be evicted and is not listed for that"]
    parts.cache.radix._leaves[node.serial] = leaf
    longer = parts.run([*PROMPT, *range(40, 49)])
    assert parts.laws(longer) == []
    node.last_access -= 1
    below = longer.node
    assert below is not None
    (problem,) = parts.laws(longer)
    assert problem.startswith(f"order: radix node {node.serial} was last used at {node.last_access}, its child ")


def test_what_is_evicted_had_been_used_no_later_than_what_is_left(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    radix = parts.cache.radix
    recency = Recency(radix)
    for prompt in (PROMPT, [*range(60, 69)]):
        parts.cache.release(parts.run(prompt), keep=False)
    older, newer = radix.leaves()
    assert recency.check() == []
    monkeypatch.setattr("heapq.heappop", lambda heap: heap.pop(heap.index(max(heap))))
    parts.memory.free(radix.evict(1))
    said = f"node {newer.serial} (last used at {newer.last_access}) was evicted before node {older.serial}"
    assert recency.check() == [f"order: radix {said} (last used at {older.last_access})"]
    parts.memory.free(radix.evict(1))
    assert recency.check() == []


def test_a_leaf_that_was_used_again_is_no_reason_to_have_evicted_it_first(parts: Parts) -> None:
    radix = parts.cache.radix
    recency = Recency(radix)
    for prompt in (PROMPT, [*range(60, 69)]):
        parts.cache.release(parts.run(prompt), keep=False)
    recency.check()
    parts.cache.release(parts.run(PROMPT), keep=False)
    parts.memory.free(radix.evict(1))
    assert recency.check() == []


def test_what_is_made_in_the_tree_is_later_than_all_that_was_used_before(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    radix = parts.cache.radix
    recency = Recency(radix)
    parts.cache.release(parts.run(PROMPT), keep=False)
    assert recency.check() == []
    plant(monkeypatch, RadixCache, "_descend", "self._clock += 1")
    (before,) = radix.leaves()
    parts.cache.release(parts.run([*range(60, 69)]), keep=False)
    _, after = radix.leaves()
    used = f"radix node {after.serial} is new and was last used at {before.last_access}"
    assert recency.check() == [f"order: {used}, another at {before.last_access} before"]


def test_a_clock_that_never_moved_is_told_at_the_first_look(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    recency = Recency(parts.cache.radix)
    plant(monkeypatch, RadixCache, "_descend", "self._clock += 1")
    parts.cache.release(parts.run(PROMPT), keep=False)
    assert recency.check() == ["order: radix node 1 is new and was last used at 0, another at 0 before"]


def keeps_the_row(cache: PrefixCache, request: Request, *, keep: bool) -> None:
    """The bug: rows are not given back."""
    free_row = cache.req_to_token.free_row
    cache.req_to_token.free_row = lambda row: None  # type: ignore[method-assign]
    RELEASE(cache, request, keep=keep)
    cache.req_to_token.free_row = free_row  # type: ignore[method-assign]


def keeps_the_row_of_a_retracted(cache: PrefixCache, request: Request, *, keep: bool) -> None:
    (keeps_the_row if request.finish_reason is None else RELEASE)(cache, request, keep=keep)


def unlocks_twice(cache: PrefixCache, request: Request, *, keep: bool) -> None:
    """The bug: what others read, too, is unlocked again; of a node of its own alone the tree would say so itself."""
    shared = next((node for node in request.node.path() if node.lock_ref > 1), None) if request.node else None
    RELEASE(cache, request, keep=keep)
    if shared is not None:
        cache.radix.unlock(shared)


def takes_no_lock(radix: RadixCache, node: TreeNode) -> None:
    """The bug: nothing is locked; and what is unlocked is not counted, or the engine would say so itself."""


def refreshes_nothing(radix: RadixCache, *key: Any, **options: Any) -> Any:
    for node in DESCEND(radix, *key, **options):
        if node.children:
            node.last_access = 0
        yield node


RELEASE, DESCEND = PrefixCache.release, RadixCache._descend

BUGS = {
    "rows@release": ((PrefixCache, "release", keeps_the_row),),
    "rows@retraction": ((PrefixCache, "release", keeps_the_row_of_a_retracted),),
    "locks@twice": ((PrefixCache, "release", unlocks_twice),),
    "locks@never": ((RadixCache, "lock", takes_no_lock), (RadixCache, "unlock", takes_no_lock)),
    "order@": ((RadixCache, "_descend", refreshes_nothing),),
}


@pytest.mark.parametrize("bug", [None, *BUGS])
def test_an_engine_with_a_bug_in_its_books_breaks_the_law_in_the_step_that_shows_it(
    bug: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name, wrong in BUGS[bug] if bug else ():
        monkeypatch.setattr(owner, name, wrong)
    memory = {"num_slots": 120, "fill": "garbage"}
    spec = {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6}
    options = {"context_length": 96, "max_running_requests": 4, "speculative": spec, "memory": memory}
    engine = Engine(EngineConfig.from_dict(options))
    laws: dict[int, list[str]] = {}
    for number in range(6):
        prompt = [*range(50, 70), *range(200 + number, 205 + number)]
        engine.add_request(f"a.{number}", prompt, SamplingParams(max_new_tokens=16))
    retractions = 0
    for step in range(80):
        if not engine.has_work:
            break
        try:
            report = engine.step()
        except EngineError:
            break
        retractions += len(report.retracted)
        if problems := engine.check_pools():
            laws[step] = problems
    if bug is None:
        assert laws == {}
        assert retractions, "nothing was set back"
        return
    first = laws[min(laws)]
    assert {problem.partition(":")[0] for problem in first} == {bug.partition("@")[0]}, first


def test_an_engine_looks_at_requests_that_have_ended() -> None:
    engine = Engine(make_config(num_slots=64))
    request = engine.add_request("a", PROMPT, SamplingParams(max_new_tokens=3))
    while engine.has_work:
        engine.step()
    assert engine.check_pools() == []
    request.row = 1
    assert engine.check_pools() == ["rows: a has ended, and has row 1 and 0 positions"]

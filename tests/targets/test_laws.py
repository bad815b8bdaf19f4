"""The conservation laws of slots, rows, locks, eviction, room and streams find what is planted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specdebug.engine import Engine, EngineConfig, SamplingParams
from specdebug.engine.errors import EngineError
from specdebug.engine.textbook import sampler
from specdebug.engine.textbook.memory.prefix_cache import PrefixCache
from specdebug.engine.textbook.memory.radix_cache import RadixCache, TreeNode
from specdebug.engine.textbook.request import Request, Status
from specdebug.targets.laws import Recency, Room, broken_laws, check_others
from tests.engine.driving import plant
from tests.engine.machine import Machine
from tests.engine.parts import Parts, make_config

PROMPT = list(range(20, 29))  # 9 tokens: 8 cached slots, one held
OTHER = list(range(60, 69))
V1 = {"worker": "v1", "num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6}


@pytest.fixture(params=[1, 4])
def parts(request: pytest.FixtureRequest) -> Parts:
    return Parts(make_config(page_size=request.param, num_slots=32))


@pytest.fixture
def holder(parts: Parts) -> Request:
    return parts.run(PROMPT)


def test_a_healthy_engine_breaks_no_law_and_a_forgotten_holder_is_a_lost_page(parts: Parts, holder: Request) -> None:
    assert parts.laws(holder) == []
    page, slot = parts.config.page_size, int(parts.req_to_token.slots(holder.row, 8, 9))
    assert parts.laws() == [
        f"ownership: {page} slots have no owner (first: {slot})",
        "rows: row 1 is lost: neither free nor held by a request that prefills or runs",
        "locks: radix node 1 has lock_ref 1, 0 requests read it",
    ]
    parts.cache.release(holder, keep=False)
    assert parts.laws() == []
    assert parts.laws(holder) == ["rows: r1 holds row 0, which pads batches"]


def put(position: int, slot: int) -> Callable[[Parts, Request], None]:
    return lambda parts, holder: parts.req_to_token.write(holder.row, position, torch.tensor([slot]))


def freed(position: int) -> Callable[[Parts, Request], None]:
    return lambda parts, holder: parts.memory.allocator.free(
        parts.req_to_token.slots(holder.row, position, position + 1)
    )


def counted(name: str, by: int) -> Callable[[Parts, Request], None]:
    return lambda parts, _: setattr(parts.cache.radix, name, getattr(parts.cache.radix, name) + by)


def drifts(parts: Parts, holder: Request) -> None:
    counted("evictable_size", 3)(parts, holder)
    counted("protected_size", -3)(parts, holder)


def loses_a_slot(parts: Parts, holder: Request) -> None:
    assert holder.node is not None
    holder.node.slots = holder.node.slots[:-1]


def grows(parts: Parts, holder: Request) -> None:
    assert parts.grow(holder, 16)
    put(15, -7)(parts, holder)


def listed_twice(parts: Parts, holder: Request) -> None:
    parts.memory.allocator._released.append(parts.memory.allocator.listed()[:1])


def evicts(parts: Parts, holder: Request) -> None:
    assert holder.node is not None
    parts.cache.radix.unlock(holder.node)
    parts.memory.free(parts.cache.radix.evict(1))


def locks(times: int) -> Callable[[Parts, Request], None]:
    def act(parts: Parts, holder: Request) -> None:
        assert holder.node is not None
        for _ in range(abs(times)):
            (parts.cache.radix.lock if times > 0 else parts.cache.radix.unlock)(holder.node)

    return act


PLANTED: dict[str, tuple[Callable[[Parts, Request], object], str]] = {
    "a held slot is freed": (freed(8), "ownership: slot {own} has 2 owners"),
    "a cached slot is freed": (freed(0), "ownership: slot {first} has 2 owners"),
    "slots are taken and not held": (
        lambda parts, _: parts.memory.allocator.alloc(8),
        "ownership: 8 slots have no owner",
    ),
    "a page is listed twice": (listed_twice, "ownership: page {free} is listed as free 2 times"),
    "a cell names padding": (put(7, 0), "liveness: r1 position 7 of 9 points outside the pool"),
    "a cell is beyond the pool": (put(3, 10**6), "liveness: r1 position 3 of 9 points outside the pool"),
    "a reserved cell is in no pool": (grows, "liveness: r1 holds slot -7, outside the pool"),
    "a node lost a slot": (loses_a_slot, "liveness: r1 has 8 protected positions, the tree holds 7 of them"),
    "a counter drifts": (counted("evictable_size", 1), "locks: evictable + protected = 9, cached = 8"),
    "counters drift apart": (drifts, "locks: evictable = 3, but nodes without a lock hold 0 slots"),
    "a node is evicted while it is read": (evicts, "locks: r1 reads radix node 1, which is not in the tree"),
    "a lock is taken twice": (locks(1), "locks: radix node 1 has lock_ref 2, 1 requests read it: r1"),
    "a lock is given back": (locks(-1), "locks: radix node 1 has lock_ref 0, 1 requests read it: r1"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_told_with_its_law(parts: Parts, holder: Request, name: str) -> None:
    act, expected = PLANTED[name]
    own, first = (int(parts.req_to_token.slots(holder.row, at, at + 1)) for at in (8, 0))
    expected = expected.format(own=own, first=first, free=parts.memory.allocator.listed()[0])
    act(parts, holder)
    assert any(problem.startswith(expected) for problem in parts.laws(holder))


def test_a_cell_that_is_not_the_tree_s_slot_and_one_beyond_what_is_allocated(parts: Parts, holder: Request) -> None:
    parts.req_to_token.write(holder.row, holder.kv_allocated, torch.tensor([0, -1]))
    assert parts.laws(holder) == [], "cells beyond mean nothing"
    own, cached = (int(parts.req_to_token.slots(holder.row, at, at + 1)) for at in (8, 2))
    put(2, own)(parts, holder)
    assert parts.laws(holder) == [f"liveness: r1 position 2 reads slot {own}, it is cached in slot {cached}"]


def test_a_row_that_is_held_twice_or_freed_while_held_is_named_with_its_holders(parts: Parts, holder: Request) -> None:
    other = parts.run([1, 2])
    held, other.row = other.row, holder.row
    problems = parts.laws(holder, other)
    assert f"rows: row {holder.row} is held by r1 and r2" in problems
    assert f"rows: row {held} is lost: neither free nor held by a request that prefills or runs" in problems
    other.row = held
    parts.req_to_token.free_row(held)
    assert parts.laws(holder, other) == [f"rows: row {held} is held by the free list and r2"]


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


def test_leaves_that_are_listed_wrongly_and_times_out_of_order_are_named(parts: Parts, holder: Request) -> None:
    node, radix = holder.node, parts.cache.radix
    assert node is not None
    parts.cache.release(holder, keep=False)
    leaf = radix._leaves.pop(node.serial)
    assert parts.laws() == [f"order: radix node {node.serial} can be evicted and is not listed for that"]
    radix._leaves[node.serial] = leaf
    longer = parts.run([*PROMPT, *range(40, 49)])
    assert parts.laws(longer) == []
    node.last_access -= 1
    (problem,) = parts.laws(longer)
    assert problem.startswith(f"order: radix node {node.serial} was last used at {node.last_access}, its child ")


def test_what_is_evicted_had_been_used_no_later_than_what_is_left(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    radix = parts.cache.radix
    recency = Recency(radix)
    for prompt in (PROMPT, OTHER):
        parts.cache.release(parts.run(prompt), keep=False)
    older, newer = radix.leaves()
    assert recency.check() == []
    monkeypatch.setattr("heapq.heappop", lambda heap: heap.pop(heap.index(max(heap))))
    parts.memory.free(radix.evict(1))
    said = f"node {newer.serial} (last used at {newer.last_access}) was evicted before node {older.serial}"
    assert recency.check() == [f"order: radix {said} (last used at {older.last_access})"]
    parts.memory.free(radix.evict(1))
    assert recency.check() == []


@pytest.mark.parametrize("looked_before", [True, False])
def test_what_is_made_in_the_tree_is_later_than_all_that_was_used_before(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, looked_before: bool
) -> None:
    radix, used = parts.cache.radix, 0
    recency = Recency(radix)
    if looked_before:
        parts.cache.release(parts.run(PROMPT), keep=False)
        assert recency.check() == []
        (before,) = radix.leaves()
        used = before.last_access
    plant(monkeypatch, RadixCache, "_descend", "self._clock += 1")
    parts.cache.release(parts.run(OTHER), keep=False)
    *_, after = radix.leaves()
    said = f"radix node {after.serial} is new and was last used at {used}, another at {used} before"
    assert recency.check() == [f"order: {said}"]


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
    spec = {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6}
    options = {"context_length": 96, "max_running_requests": 4, "speculative": spec}
    engine = Engine(EngineConfig.from_dict({**options, "memory": {"num_slots": 120, "fill": "garbage"}}))
    for number in range(6):
        prompt = [*range(50, 70), *range(200 + number, 205 + number)]
        engine.add_request(f"a.{number}", prompt, SamplingParams(max_new_tokens=16))
    found, retractions = list[list[str]](), 0
    for _ in range(80):
        try:
            retractions += len(engine.step().retracted)
        except EngineError:
            break
        found.append(broken_laws(engine))
        if not engine.has_work:
            break
    if bug is None:
        assert not any(found)
        assert retractions, "none was set back"
        return
    first = next(problems for problems in found if problems)
    assert {problem.partition(":")[0] for problem in first} == {bug.partition("@")[0]}, first


@pytest.mark.parametrize(("worker", "most"), [("v1", 12), ("v2", 24)])
def test_a_holder_keeps_whole_pages_and_no_more_than_its_worker_lets_it(worker: str, most: int) -> None:
    """9 positions: v1 leaves them alone, v2 two steps of 6 behind them."""
    parts = Parts(make_config(page_size=4, num_slots=64, speculative={"worker": worker, "num_steps": 5}))
    request, room = parts.run(PROMPT), Room(parts.config, parts.cache)
    for held in range(8, 32):
        request.kv_allocated = held
        due = "12" if most == 12 else "12 to 24"
        said = f"reserve: r1 has committed 9 positions and holds {held} slots, not {due} in whole pages"
        assert room.check([request]) == ([said] if held % 4 or not 12 <= held <= most else [])


def test_a_request_that_decodes_has_two_steps_behind_where_it_went_on() -> None:
    """21 cells are 24 in pages of 4; less would do for one step, and more for its new length."""
    parts = Parts(make_config(page_size=4, num_slots=64, speculative={"num_steps": 5}))
    request, room = parts.run(PROMPT), Room(parts.config, parts.cache)
    for held in (20, 24, 28):
        request.kv_len, request.kv_allocated = 9, held
        room.begin([request], None, [])
        request.kv_len = 13
        room.end()
        said = f"reserve: r1 went on from 9 with {held} slots, not 24"
        assert room.check([request]) == ([] if held == 24 else [said])


@pytest.mark.parametrize(
    ("options", "prompt", "name", "wrong", "said"),
    [
        (
            {"speculative": V1},
            None,
            "borrowed",
            lambda all_: 15 * len(all_),
            r"r3 was set back, for \d+ slots when \d+ ",
        ),
        ({}, [7] * 6, "admitted", lambda one: 40, "r4 waits with 36 slots to spare, and needs 8"),
        (
            {"page_size": 4},
            [7] * 31,
            "admitted",
            lambda one: -12,
            "r4 was admitted with 32 slots to spare, and needs 36",
        ),
    ],
)
def test_a_scheduler_that_counts_wrong_breaks_the_law_of_room(
    monkeypatch: pytest.MonkeyPatch, options: Any, prompt: list[int] | None, name: str, wrong: Any, said: str
) -> None:
    machine = Machine(num_slots=48, radix_cache=False, **options)
    for n in range(3):
        machine.add([5 - n] * (5 - n), new=9)
    assert machine.step()[0] == "prefill"
    if prompt is None:
        machine.step()
    else:
        machine.add(prompt, new=2)
    monkeypatch.setattr(machine.scheduler.reservation, name, wrong)
    with pytest.raises(AssertionError, match=f"room: {said}"):
        machine.step()


@pytest.fixture
def sampling() -> Engine:
    engine = Engine(make_config())
    for rid, temperature in (("a", 0.9), ("b", 0.9), ("greedy", 0.0)):
        engine.add_request(rid, [50, 51, 52], SamplingParams(max_new_tokens=4, temperature=temperature))
    return engine


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if request.generator is None", "if request.generator is not None"),
        ("request.generator = torch.Generator().manual_seed(seed)", "pass"),
    ],
)
def test_draws_from_the_global_generator_are_told(
    monkeypatch: pytest.MonkeyPatch, sampling: Engine, old: str, new: str
) -> None:
    plant(monkeypatch, sampler, "request_generator", old, new)
    sampling.step()
    expected = [f"streams: {rid} has sampled, and has no generator of its own" for rid in ("a", "b")]
    assert broken_laws(sampling) == expected


def test_two_requests_on_one_generator_are_told(sampling: Engine) -> None:
    sampling.step()
    assert broken_laws(sampling) == []
    sampling.requests["b"].generator = sampling.requests["a"].generator
    assert broken_laws(sampling) == ["streams: b and a draw from one generator"]

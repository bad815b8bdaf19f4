"""SGLang's pools add up: each law holds of a sound engine, and each way to break it is named."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.targets.sglang.inside.books import violated
from tests.targets.sglang.inside.engine import scheduler


@pytest.mark.parametrize("running", [True, False])
def test_sound_pools_break_no_law(running: bool) -> None:
    assert violated(scheduler(running=running)) == []


def _as_it_was(one: Any) -> None:
    """Releases up to 0.5.15."""


def _allocated_apart(one: Any) -> None:
    """Those up to 0.5.18."""
    one.kv = SimpleNamespace(kv_allocated_len=one.kv_allocated_len)
    del one.kv_allocated_len


def _all_apart(one: Any) -> None:
    """Those up to 0.5.21."""
    names = ("req_pool_idx", "cache_protected_len", "kv_committed_len", "kv_allocated_len")
    one.kv = SimpleNamespace(**{name: vars(one).pop(name) for name in names})


def _with_locks(one: Any) -> None:
    """Those from 0.5.22 on, in which a node that was the last is not always locked."""
    _all_apart(one)
    one.lock, one.last_node = SimpleNamespace(node=one.last_node), None


@pytest.mark.parametrize("keeps", [_as_it_was, _allocated_apart, _all_apart, _with_locks])
@pytest.mark.parametrize("name", ["cur_batch", "cur_batch_for_debug"])
def test_what_a_request_holds_is_found_wherever_a_release_keeps_it(keeps: Callable[[Any], None], name: str) -> None:
    """Here one that only the batch has that was launched last."""
    engine = scheduler()
    (one,) = engine.running_batch.reqs
    keeps(one)
    del engine.cur_batch
    setattr(engine, name, engine.running_batch)
    engine.running_batch = engine.last_batch = None
    assert violated(engine) == []


FREE = "token_to_kv_pool_allocator.free_pages"


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (FREE, torch.tensor([5, 6, 7]), "ownership: 1 pages have no owner (first: 8)"),
        (FREE, torch.tensor([3, 5, 6, 7, 8]), "ownership: page 3 has 2 owners: free and 0123abcd-a"),
        (FREE, torch.tensor([5, 5, 6, 7, 8]), "ownership: page 5 has 2 owners: free and free"),
        (FREE, torch.tensor([5, 6, 7, 8, 9]), "liveness: free holds page 9, outside the pool"),
        ("req_to_token_pool.req_to_token", None, "liveness: 0123abcd-a position 1 of 6 points to slot 0"),
        ("req_to_token_pool.free_slots", [],
         "rows: row 2 is lost: neither free nor held by a request that prefills or runs"),
        ("req_to_token_pool.free_slots", [1, 2], "rows: row 1 is held by the free list and 0123abcd-a"),
        ("tree_cache.node.lock_ref", 2, "locks: radix node 1 has lock_ref 2, 1 requests read it: 0123abcd-a"),
        ("tree_cache.evictable_size_", 2, "locks: evictable + protected = 6, cached = 4"),
    ],
)  # fmt: skip
def test_each_broken_law_is_named(place: str, value: Any, told: str) -> None:
    engine = scheduler()
    owner, _, name = place.rpartition(".")
    if value is None:
        engine.req_to_token_pool.req_to_token[1, 1] = 0
    else:
        setattr(attrgetter(owner)(engine), name, value)
    assert violated(engine) == [told]


def test_a_tree_that_shows_no_nodes_is_added_up_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_ported(_: object) -> None:
        raise NotImplementedError("root_node")

    engine = scheduler()
    engine.tree_cache.node.lock_ref = 2
    monkeypatch.setattr(type(engine.tree_cache), "root_node", property(not_ported, lambda *_: None), raising=False)
    assert violated(engine) == []
    engine.tree_cache.evictable_size_ = 2
    assert violated(engine) == ["locks: evictable + protected = 6, cached = 4"]


def test_a_lock_that_outlives_every_request_is_named() -> None:
    engine = scheduler(running=False)
    engine.tree_cache.node.lock_ref, engine.tree_cache.evictable_size_ = 1, 0
    assert violated(engine) == [
        "locks: 4 slots are protected, and no request runs",
        "locks: radix node 1 has lock_ref 1, 0 requests read it",
    ]

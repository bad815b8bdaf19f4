"""SGLang's pools add up: each law holds of a sound engine, and each way to break it is named."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.targets.sglang.inside import requests
from specdebug.targets.sglang.inside.books import violated

PAGE, PAGES = 2, 8


class Node(SimpleNamespace):
    """A node of a radix tree."""


class Tree:
    """A radix tree of a root and one node of two pages."""

    disable = False

    def __init__(self, locked: int) -> None:
        self.root_node = Node(id=0, parent=None, lock_ref=1, children={})
        self.node = Node(id=1, parent=self.root_node, lock_ref=locked, children={}, value=torch.tensor([2, 3, 4, 5]))
        self.root_node.children["a"] = self.node
        self.off = 0

    def total_size(self) -> int:
        return self.node.value.numel()

    def all_values_flatten(self) -> torch.Tensor:
        value: torch.Tensor = self.node.value
        return value

    def evictable_size(self) -> int:
        return (0 if self.node.lock_ref else 4) + self.off

    def protected_size(self) -> int:
        return 4 if self.node.lock_ref else 0


@pytest.fixture(autouse=True)
def _release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "installed", lambda: "0.5.13")


def scheduler(*, running: bool = True) -> Any:
    """One request that reads the node's two pages and has two of its own, or none."""
    tree = Tree(locked=int(running))
    table = torch.zeros(3, 16, dtype=torch.int32)
    table[1, :7] = torch.tensor([2, 3, 4, 5, 6, 7, 8])
    one = SimpleNamespace(
        rid="a", req_pool_idx=1, cache_protected_len=4, kv_committed_len=6, kv_allocated_len=7, last_node=tree.node
    )
    batch = SimpleNamespace(reqs=[one] if running else [])
    free = [5, 6, 7, 8] if running else [3, 4, 5, 6, 7, 8]
    allocator = SimpleNamespace(
        page_size=PAGE,
        size=PAGE * PAGES,
        free_pages=torch.tensor(free),
        release_pages=torch.tensor([], dtype=torch.int64),
    )
    pool = SimpleNamespace(req_to_token=table, free_slots=[2] if running else [1, 2])
    return SimpleNamespace(
        running_batch=batch,
        last_batch=batch,
        cur_batch=None,
        chunked_req=None,
        req_to_token_pool=pool,
        token_to_kv_pool_allocator=allocator,
        tree_cache=tree,
    )


@pytest.mark.parametrize("running", [True, False])
def test_sound_pools_break_no_law(running: bool) -> None:
    assert violated(scheduler(running=running)) == []


def _leak(engine: Any) -> None:
    engine.token_to_kv_pool_allocator.free_pages = torch.tensor([5, 6, 7])


def _free_what_is_held(engine: Any) -> None:
    engine.token_to_kv_pool_allocator.free_pages = torch.tensor([3, 5, 6, 7, 8])


def _free_twice(engine: Any) -> None:
    engine.token_to_kv_pool_allocator.free_pages = torch.tensor([5, 5, 6, 7, 8])


def _page_of_nobody(engine: Any) -> None:
    engine.token_to_kv_pool_allocator.free_pages = torch.tensor([5, 6, 7, 8, 9])


def _dead_cell(engine: Any) -> None:
    engine.req_to_token_pool.req_to_token[1, 1] = 0


def _row_lost(engine: Any) -> None:
    engine.req_to_token_pool.free_slots = []


def _row_shared(engine: Any) -> None:
    engine.req_to_token_pool.free_slots = [1, 2]


def _lock_left(engine: Any) -> None:
    engine.tree_cache.node.lock_ref = 2


def _sums(engine: Any) -> None:
    engine.tree_cache.off = 2


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_leak, "ownership: 1 pages have no owner (first: 8)"),
        (_free_what_is_held, "ownership: page 3 has 2 owners: free and a"),
        (_free_twice, "ownership: page 5 has 2 owners: free and free"),
        (_page_of_nobody, "liveness: free holds page 9, outside the pool"),
        (_dead_cell, "liveness: a position 1 of 6 points to slot 0"),
        (_row_lost, "rows: row 2 is lost: neither free nor held by a request that prefills or runs"),
        (_row_shared, "rows: row 1 is held by the free list and a"),
        (_lock_left, "locks: radix node 1 has lock_ref 2, 1 requests read it: a"),
        (_sums, "locks: evictable + protected = 6, cached = 4"),
    ],
)
def test_each_broken_law_is_named(damage: Callable[[Any], None], told: str) -> None:
    engine = scheduler()
    damage(engine)
    assert violated(engine) == [told]


def test_a_lock_that_outlives_every_request_is_named() -> None:
    engine = scheduler(running=False)
    engine.tree_cache.node.lock_ref = 1
    assert violated(engine) == [
        "locks: 4 slots are protected, and no request runs",
        "locks: radix node 1 has lock_ref 1, 0 requests read it",
    ]

"""A scheduler of SGLang's, as far as books, views and faults look at one: one request with four positions of the tree's
and three of its own, of which two have KV."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from specdebug.targets.sglang.inside import seats

PAGE, PAGES = 2, 8
VOCAB = 64


class Node(SimpleNamespace):
    """A node of a radix tree."""


class Key(SimpleNamespace):
    """A key of pairs of tokens."""

    def __len__(self) -> int:
        return len(self.token_ids) - 1


class Tree:
    """A radix tree of a root and one node of two pages."""

    disable = disable_finished_insert = False
    is_eagle = True  # keys are of pairs

    def __init__(self, locked: int) -> None:
        self.root_node = Node(id=0, parent=None, lock_ref=1, children={})
        value = torch.tensor([2, 3, 4, 5])
        key = Key(token_ids=[1, 2, 3, 4, 5])
        self.node = Node(id=1, parent=self.root_node, lock_ref=locked, children={}, value=value, key=key)
        self.root_node.children["a"] = self.node
        self.evictable_size_ = 0 if locked else 4

    def total_size(self) -> int:
        return self.node.value.numel()

    def all_values_flatten(self) -> torch.Tensor:
        value: torch.Tensor = self.node.value
        return value

    def evictable_size(self) -> int:
        return self.evictable_size_

    def protected_size(self) -> int:
        return 4 if self.node.lock_ref else 0


class Allocator:
    """Free pages, as SGLang's paged allocator has them."""

    page_size, size = PAGE, PAGE * PAGES

    def __init__(self, free: list[int], pool: Any) -> None:
        self.free_pages = torch.tensor(free)
        self.release_pages = torch.tensor([], dtype=torch.int64)
        self._pool = pool

    def get_kvcache(self) -> Any:
        return self._pool

    def available_size(self) -> int:
        return (self.free_pages.numel() + self.release_pages.numel()) * PAGE

    def free(self, slots: torch.Tensor) -> None:
        self.free_pages = torch.cat((self.free_pages, torch.unique(slots // PAGE)))

    def alloc(self, count: int) -> torch.Tensor | None:
        taken, self.free_pages = self.free_pages[: count // PAGE], self.free_pages[count // PAGE :]
        return (taken.unsqueeze(1) * PAGE + torch.arange(PAGE)).flatten()


def pool_of(layers: int) -> Any:
    slots = PAGE * (PAGES + 1)
    buffers = [[torch.zeros(slots, 1, 4) for _ in range(layers)] for _ in "kv"]
    return SimpleNamespace(k_buffer=buffers[0], v_buffer=buffers[1])


def scheduler(*, running: bool = True) -> Any:
    """One request that reads the node's two pages and has two of its own, or none."""
    tree = Tree(locked=int(running))
    table = torch.zeros(3, 16, dtype=torch.int32)
    table[1, :7] = torch.tensor([2, 3, 4, 5, 6, 7, 8])
    one = SimpleNamespace(
        rid="0123abcd-a",
        req_pool_idx=1,
        cache_protected_len=4,
        kv_committed_len=6,
        kv_allocated_len=7,
        last_node=tree.node,
        origin_input_ids=[1, 2, 3, 4, 5],
        output_ids=[6, 7],
    )
    mode = SimpleNamespace(is_extend=lambda: False)
    batch = SimpleNamespace(reqs=[one] if running else [], forward_mode=mode)
    free = [5, 6, 7, 8] if running else [3, 4, 5, 6, 7, 8]
    pool = SimpleNamespace(req_to_token=table, free_slots=[2] if running else [1, 2])
    draft_config = SimpleNamespace(hf_config=SimpleNamespace(draft_vocab_size=None, vocab_size=VOCAB))
    runner = SimpleNamespace(token_to_kv_pool=pool_of(1), model_config=draft_config)
    return SimpleNamespace(
        running_batch=batch,
        last_batch=batch,
        waiting_queue=[],
        cur_batch=None,
        chunked_req=None,
        req_to_token_pool=pool,
        token_to_kv_pool_allocator=Allocator(free, pool_of(2)),
        tree_cache=tree,
        draft_worker=SimpleNamespace(_draft_worker=SimpleNamespace(draft_runner=runner)),
        model_config=SimpleNamespace(vocab_size=VOCAB),
        server_args=SimpleNamespace(speculative_num_steps=3, speculative_eagle_topk=2, speculative_num_draft_tokens=6),
    )


def imported(monkeypatch: pytest.MonkeyPatch, modules: Mapping[str, Mapping[str, Any]]) -> None:
    """Have modules below ``sglang.srt`` that hold some names stand for SGLang's."""
    for path, names in modules.items():
        module = ModuleType(path)
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, f"sglang.srt.{path}", module)

    def has(place: str) -> bool:
        module, _, names = place.partition(":")
        found: Any = sys.modules.get(f"sglang.{module}")
        for name in filter(None, names.split(".")):
            found = getattr(found, name, None)
        return found is not None

    monkeypatch.setattr(seats, "installed", lambda: SimpleNamespace(has=has))

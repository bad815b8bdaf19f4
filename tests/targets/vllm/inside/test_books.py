"""The laws of vLLM's books, on a scheduler that stands for its: sound ones are silent, broken ones are named by law."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from specdebug.targets.vllm.inside.books import check_books

SIZE = 4


class Queue:
    """Blocks linked one to the next, between two that are none of the pool's."""

    def __init__(self, blocks: list[Any]) -> None:
        self.fake_free_list_head = SimpleNamespace(block_id=-1, next_free_block=None)
        self.fake_free_list_tail = SimpleNamespace(block_id=-1, next_free_block=None)
        self.link(blocks)
        self.num_free_blocks = len(blocks)

    def link(self, blocks: list[Any]) -> None:
        chain = [self.fake_free_list_head, *blocks, self.fake_free_list_tail]
        for one, other in pairwise(chain):
            one.next_free_block = other


class Cached(dict[str, set[int]]):
    """Blocks by hash."""

    def contain(self, key: str, block: int) -> bool:
        return block in self.get(key, ())


def scheduler() -> Any:
    """Two requests that run, the first block of both one cached prefix: a decodes with two drafts, b prefills still.
    Of eight blocks 0 is the null block, 1 to 4 are held, 5 to 7 are free, 7 of them cached."""
    blocks = [SimpleNamespace(block_id=n, ref_cnt=0, block_hash=None, next_free_block=None) for n in range(8)]
    held = {"a": [blocks[1], blocks[2], blocks[3]], "b": [blocks[1], blocks[4]]}
    for each in (*held["a"], *held["b"]):
        each.ref_cnt += 1
    blocks[1].block_hash, blocks[7].block_hash = "one", "seven"
    pool = SimpleNamespace(
        blocks=blocks,
        null_block=blocks[0],
        free_block_queue=Queue(blocks[5:]),
        cached_block_hash_to_block=Cached({"one": {1}, "seven": {7}}),
        cached_block_hashes_by_block={},
    )
    manager = SimpleNamespace(req_to_blocks=held, block_size=SIZE, num_cached_block={"a": 1, "b": 1})
    tokens = list(range(20))
    facts = {"num_output_placeholders": 0, "spec_token_ids": [1, 2]}
    counts = ("num_tokens", "num_computed_tokens", "num_output_tokens", "is_prefill_chunk")
    a, b = (
        SimpleNamespace(request_id=rid, all_token_ids=tokens[: of[0]], **dict(zip(counts, of, strict=True)), **facts)
        for rid, of in (("a", (8, 7, 2, False)), ("b", (9, 6, 0, True)))
    )
    coordinator = SimpleNamespace(single_type_managers=(manager,))
    return SimpleNamespace(
        kv_cache_manager=SimpleNamespace(block_pool=pool, coordinator=coordinator),
        requests={"a": a, "b": b},
        running=[a, b],
        deferred_frees=[],
        num_spec_tokens=2,
        num_lookahead_tokens=2,
    )


def pool(made: Any) -> Any:
    return made.kv_cache_manager.block_pool


def manager(made: Any) -> Any:
    return made.kv_cache_manager.coordinator.single_type_managers[0]


def table(made: Any) -> Any:
    return manager(made).req_to_blocks


def test_sound_books_are_silent() -> None:
    made = scheduler()
    assert check_books(made) == []
    made.deferred_frees = [(1, [pool(made).blocks[5]])]  # not given back yet
    pool(made).blocks[5].ref_cnt = 1
    pool(made).free_block_queue = Queue(pool(made).blocks[6:])
    assert check_books(made) == []


def _leak(made: Any) -> None:
    pool(made).free_block_queue.link(pool(made).blocks[6:])


def _twice(made: Any) -> None:
    again = SimpleNamespace(block_id=6, next_free_block=pool(made).blocks[5])
    pool(made).free_block_queue.fake_free_list_head.next_free_block = again


def _free_and_held(made: Any) -> None:
    table(made)["a"].append(pool(made).blocks[5])
    pool(made).blocks[5].ref_cnt = 1


def _shared(made: Any) -> None:
    table(made)["b"][1] = pool(made).blocks[2]
    pool(made).blocks[2].ref_cnt, pool(made).blocks[4].ref_cnt = 2, 0


def _ended(made: Any) -> None:
    del made.running[1]
    del made.requests["b"]


@pytest.mark.parametrize(
    ("damage", "law", "words"),
    [
        (_leak, "ownership", "block 5 is lost: neither free nor held by a request"),
        (_twice, "ownership", "block 6 is listed as free 2 times"),
        (lambda made: setattr(pool(made).free_block_queue, "num_free_blocks", 4),
         "ownership", "4 blocks are counted as free, 3 are listed"),
        (_free_and_held, "ownership", "block 5 is free, and a holds it"),
        (_shared, "ownership", "block 2 is held by a and b, and is no cached prefix of both"),
        # a cached block of two requests must be behind the same tokens of both
        (lambda made: made.requests["b"].all_token_ids.__setitem__(2, 99),
         "ownership", "block 1 is held by a and b, and is no cached prefix of both"),
        (lambda made: setattr(pool(made).blocks[2], "ref_cnt", 2),
         "locks", "block 2 has ref_cnt 2, 1 requests hold it (a)"),
        (_ended, "rows", "b has ended, and holds 2 blocks"),
        (lambda made: made.running.pop(), "rows", "b does not run, and holds 2 blocks"),
        (lambda made: setattr(pool(made).blocks[7], "block_hash", None),
         "hashes", "2 hashes are cached, blocks have 1"),
        (lambda made: pool(made).cached_block_hash_to_block.pop("one"),
         "hashes", "block 1 has a hash, and is not cached"),
        (lambda made: manager(made).num_cached_block.update(a=2),
         "hashes", "a has cached 2 blocks of 4, and keeps 7 computed tokens"),
        (lambda made: setattr(made.requests["a"], "num_computed_tokens", 9),
         "lengths", "a has computed 9 tokens of 8 and 2 drafts to verify, not all but the newest"),
        (lambda made: setattr(made.requests["b"], "num_computed_tokens", 9),
         "reserve", "b holds 2 blocks for 9 tokens, of 3 to 4"),
        (lambda made: table(made)["b"].extend(pool(made).blocks[5:7]),
         "reserve", "b holds 4 blocks for 6 tokens, of 2 to 3"),
    ],
)  # fmt: skip
def test_a_broken_book_is_named_by_its_law(damage: Callable[[Any], None], law: str, words: str) -> None:
    made = scheduler()
    damage(made)
    assert f"{law}: {words}" in check_books(made)

"""The radix cache against a brute-force model: a flat map from every cached page-long prefix to its slots."""

import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.errors import EngineError
from specdebug.engine.textbook.memory.radix_cache import RadixCache, RadixKey, TreeNode


def _key(*tokens: int, lookahead: int = 1) -> RadixKey:
    return RadixKey(tokens, lookahead)


def test_insert_keeps_its_own_copy_of_slots_and_tokens() -> None:
    cache = RadixCache(page_size=1)
    row = torch.tensor([3, 4], dtype=torch.int32)
    key = _key(7, 8, 9)
    cache.insert(key, row, draft_written=True)
    row.fill_(0)
    key.array.fill(0)
    match = cache.match_prefix(_key(7, 8, 9), require_draft_kv=False)
    assert match.slots.tolist() == [3, 4]
    assert match.slots.dtype == torch.int64


def test_missing_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="1 slots offered for a key of 2"):
        RadixCache(page_size=1).insert(_key(1, 2, 3), torch.tensor([1]), draft_written=True)


def test_unlocking_too_often_is_an_error() -> None:
    cache = RadixCache(page_size=1)
    cache.insert(_key(1, 2), torch.tensor([1]), draft_written=True)
    (node,) = cache.nodes()
    with pytest.raises(EngineError, match="unlocked more often"):
        cache.unlock(node)


def test_long_prompts_cost_no_python_loop_per_token() -> None:
    cache = RadixCache(page_size=1)
    prompt = list(range(8000))
    cache.insert(RadixKey(prompt, 1), torch.arange(8000), draft_written=True)
    begin = time.perf_counter()
    for _ in range(20):
        assert cache.match_prefix(RadixKey(prompt, 1), require_draft_kv=True).slots.numel() == 7999
    assert (time.perf_counter() - begin) / 20 < 0.01


@dataclass
class _Model:
    """Every cached page, by the elements that lead up to and include it."""

    page_size: int
    lookahead: int
    pages: dict[tuple[Any, ...], tuple[list[int], bool]] = field(default_factory=dict)
    used: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def prefixes(self, tokens: list[int]) -> list[tuple[Any, ...]]:
        """The page-long prefixes of the sequence, shortest first, spelled element by element."""
        grams = [tuple(tokens[at : at + self.lookahead + 1]) for at in range(len(tokens))]
        elements = [gram for gram in grams[:-1] if len(gram) == self.lookahead + 1]
        whole = len(elements) // self.page_size * self.page_size
        return [tuple(elements[:n]) for n in range(self.page_size, whole + 1, self.page_size)]

    def match(self, tokens: list[int], require_draft_kv: bool) -> tuple[list[int], list[bool]]:
        slots: list[int] = []
        written: list[bool] = []
        for prefix in self.prefixes(tokens):
            if prefix not in self.pages:
                break
            page, has_draft = self.pages[prefix]
            if require_draft_kv and not has_draft:
                break
            slots += page
            written += [has_draft] * len(page)
        return slots, written


_OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "insert", "match", "lock", "unlock", "evict"]),
        st.integers(0, 2**30),
        st.booleans(),
    ),
    max_size=40,
)


@st.composite
def _prompts(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """A page size and prompts that often share whole pages and diverge around a page's end."""
    page_size = draw(st.sampled_from([1, 4, 16]))
    blocks = [draw(st.lists(st.integers(0, 1), min_size=page_size, max_size=page_size)) for _ in range(3)]
    prompts = []
    for _ in range(draw(st.integers(1, 6))):
        chosen = draw(st.lists(st.sampled_from(blocks), max_size=4))
        tail = draw(st.lists(st.integers(0, 2), max_size=3))
        prompts.append([token for block in chosen for token in block] + tail)
    return page_size, prompts


@settings(max_examples=300)
@given(shape=_prompts(), lookahead=st.integers(0, 3), operations=_OPERATIONS)
def test_against_a_flat_map_of_pages(
    shape: tuple[int, list[list[int]]], lookahead: int, operations: list[tuple[str, int, bool]]
) -> None:
    page_size, prompts = shape
    cache = RadixCache(page_size)
    model = _Model(page_size, lookahead)
    held: list[tuple[TreeNode, list[tuple[Any, ...]]]] = []
    next_slot = page_size
    clock = 0

    for operation, pick, flag in operations:
        tokens = prompts[pick % len(prompts)]
        key = RadixKey(tokens, lookahead)
        prefixes = model.prefixes(tokens)
        if operation == "insert":
            own, _ = model.match(tokens, require_draft_kv=False)
            length = len(prefixes) * page_size
            # A request reuses some of what it hit, as the engine does, and brings its own slots for the rest.
            reused = pick // 7 % (len(own) + 1) // page_size * page_size
            fresh = list(range(next_slot, next_slot + length - reused))
            next_slot += (len(fresh) + page_size) // page_size * page_size
            offered = own[:reused] + fresh
            result = cache.insert(key, torch.tensor(offered, dtype=torch.int32), draft_written=flag)
            assert (result.prefix_len, result.length) == (len(own), length)
            heal: list[tuple[int, int]] = []
            for index, prefix in enumerate(prefixes):
                page = offered[index * page_size : (index + 1) * page_size]
                if prefix not in model.pages:
                    model.pages[prefix] = (page, flag)
                elif flag and not model.pages[prefix][1]:
                    mine = model.pages[prefix][0]
                    heal += [pair for pair in zip(page, mine, strict=True) if pair[0] != pair[1]]
                    model.pages[prefix] = (mine, True)
            assert list(zip(result.heal_src.tolist(), result.heal_dst.tolist(), strict=True)) == heal
            clock += 1
            model.used.update(dict.fromkeys(prefixes, clock))
        elif operation in ("match", "lock"):
            slots, written = model.match(tokens, require_draft_kv=flag)
            match = cache.match_prefix(key, require_draft_kv=flag)
            assert match.slots.tolist() == slots
            assert match.draft_written.tolist() == written
            clock += 1
            touched = prefixes[: len(slots) // page_size]
            model.used.update(dict.fromkeys(touched, clock))
            if operation == "lock":
                cache.lock(match.node)
                held.append((match.node, touched))
        elif operation == "unlock" and held:
            node, _ = held.pop(pick % len(held))
            cache.unlock(node)
        elif operation == "evict":
            wanted = pick % 40
            locked = {prefix for _, path in held for prefix in path}
            may_go = sum(len(page) for prefix, (page, _) in model.pages.items() if prefix not in locked)
            before = dict(model.pages)
            freed = cache.evict(wanted).tolist()
            assert len(freed) >= min(wanted, may_go)
            assert len(set(freed)) == len(freed)
            gone = {prefix for prefix, (page, _) in before.items() if set(page) & set(freed)}
            assert sum(len(before[prefix][0]) for prefix in gone) == len(freed)
            assert not gone & locked
            for prefix in gone:
                del model.pages[prefix]
            # What goes takes everything below along, and nothing that stays ends older than what went.
            for prefix in model.pages:
                assert prefix[:-page_size] == () or prefix[:-page_size] in model.pages
            inner = {prefix[:-page_size] for prefix in model.pages}
            ends = [p for p in model.pages if p not in inner and p not in locked]
            if gone and ends:
                assert max(model.used[p] for p in gone) <= min(model.used[p] for p in ends)

        locked = {prefix for _, path in held for prefix in path}
        assert cache.protected_size == len(locked) * page_size
        assert cache.total_size == len(model.pages) * page_size
        assert cache.evictable_size + cache.protected_size == cache.total_size
        stored = cache.all_slots().tolist()
        assert sorted(stored) == sorted(slot for page, _ in model.pages.values() for slot in page)
        assert len(set(stored)) == len(stored)

"""What a commit moves, and what it leaves alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.memory.arena import FillPolicy, Scratch
from specdebug.engine.textbook.memory.mha_pool import MHAPool
from specdebug.engine.textbook.speculative.accept import Acceptance, compact_accept_to_front, get_src_tgt_cache_loc

GARBAGE = Scratch(FillPolicy("garbage", 3), torch.device("cpu"))


def acceptance_of(paths: list[list[int]], tree_size: int, num_steps: int) -> Acceptance:
    """Accepted nodes of each request; the token after node n of request b is 1000·(b + 1) + n."""
    predict = torch.zeros(len(paths) * tree_size, dtype=torch.int32)
    index = torch.full((len(paths), num_steps + 1), -1, dtype=torch.int32)
    for b, path in enumerate(paths):
        for rank, node in enumerate(path):
            index[b, rank] = b * tree_size + node
            predict[b * tree_size + node] = 1000 * (b + 1) + node
    counts = torch.tensor([len(path) - 1 for path in paths], dtype=torch.int32)
    return Acceptance(predict, index, counts)


@st.composite
def commits(draw: st.DrawFn) -> tuple[list[list[int]], int, int, Tensor]:
    """Paths (root first, ascending), tree_size, num_steps, and distinct slots of every node: int64 [B·T].

    The tree may be smaller than the longest path could be, and larger.
    """
    num_steps = draw(st.integers(1, 5))
    tree_size = draw(st.integers(2, 9))
    paths = []
    for _ in range(draw(st.integers(1, 3))):
        drafts = draw(st.sets(st.integers(1, tree_size - 1), max_size=min(num_steps, tree_size - 1)))
        paths.append([0, *sorted(drafts)])
    count = len(paths) * tree_size
    slots = draw(st.permutations(range(1, count + 1)))
    return paths, tree_size, num_steps, torch.tensor(slots)


@settings(max_examples=150, derandomize=True)
@given(commits())
def test_plan_covers_the_accepted_and_nothing_else(commit: tuple[list[list[int]], int, int, Tensor]) -> None:
    """PR 26335: both buffers have S + 1 entries a request; all that is not accepted copies slot 0 to itself."""
    paths, tree_size, num_steps, slots = commit
    plan = get_src_tgt_cache_loc(acceptance_of(paths, tree_size, num_steps), slots, tree_size, GARBAGE)
    width = num_steps + 1
    assert plan.src_loc.dtype == plan.tgt_loc.dtype == torch.int64
    assert plan.src_loc.numel() == plan.tgt_loc.numel() == len(paths) * width
    for b, path in enumerate(paths):
        mine = slots[b * tree_size : (b + 1) * tree_size].tolist()
        pad = [0] * (width - len(path))
        assert plan.src_loc[b * width : (b + 1) * width].tolist() == [mine[n] for n in path] + pad
        assert plan.tgt_loc[b * width : (b + 1) * width].tolist() == mine[: len(path)] + pad


@settings(max_examples=100, derandomize=True)
@given(commits())
def test_moving_puts_accepted_kv_in_front_in_order(commit: tuple[list[list[int]], int, int, Tensor]) -> None:
    """Also when a device copies entry by entry, ascending: no entry reads what an earlier one has overwritten."""
    paths, tree_size, num_steps, slots = commit
    pool = MHAPool(
        num_layers=2,
        num_slots=slots.numel(),
        page_size=1,
        num_kv_heads=1,
        head_dim=1,
        dtype=torch.float32,
        fill=FillPolicy("zeros"),
    )
    content = torch.arange(slots.numel() + 1, dtype=torch.float32)
    for layer in range(2):
        pool.k[layer][:, 0, 0] = content + 100 * layer
        pool.v[layer][:, 0, 0] = content + 100 * layer + 50
    plan = get_src_tgt_cache_loc(acceptance_of(paths, tree_size, num_steps), slots, tree_size, GARBAGE)
    one_by_one = content.clone()
    for src, tgt in zip(plan.src_loc.tolist(), plan.tgt_loc.tolist(), strict=True):
        one_by_one[tgt] = one_by_one[src]
    pool.move_kv_cache(plan.tgt_loc, plan.src_loc)
    for layer in range(2):
        assert torch.equal(pool.k[layer][:, 0, 0], one_by_one + 100 * layer)
        assert torch.equal(pool.v[layer][:, 0, 0], one_by_one + 100 * layer + 50)
    for b, path in enumerate(paths):
        mine = slots[b * tree_size : (b + 1) * tree_size]
        assert one_by_one[mine[: len(path)]].tolist() == mine[path].tolist()
    assert one_by_one[0] == 0, "the padding slot keeps what it had"


@settings(max_examples=150, derandomize=True)
@given(commits())
def test_compaction_keeps_tokens_and_features_together(commit: tuple[list[list[int]], int, int, Tensor]) -> None:
    paths, tree_size, num_steps, _ = commit
    acceptance = acceptance_of(paths, tree_size, num_steps)
    features = torch.arange(len(paths) * tree_size, dtype=torch.float32).unsqueeze(1).repeat(1, 3)
    compacted = compact_accept_to_front(acceptance, features, tree_size)
    assert compacted.predict.dtype == torch.int64
    assert compacted.accept_lengths.tolist() == [len(path) for path in paths]
    for b, path in enumerate(paths):
        rows = slice(b * tree_size, (b + 1) * tree_size)
        rest = tree_size - len(path)
        assert compacted.predict[rows].tolist() == [1000 * (b + 1) + node for node in path] + [0] * rest
        expected = [b * tree_size + node for node in path] + [b * tree_size] * rest
        assert compacted.features[rows, 0].tolist() == expected
        assert torch.equal(compacted.features[rows, 0], compacted.features[rows, 2])


def test_unwritten_entries_do_not_depend_on_what_memory_held() -> None:
    acceptance = acceptance_of([[0, 2], [0]], tree_size=4, num_steps=3)
    slots = torch.arange(1, 9)
    plans = [
        get_src_tgt_cache_loc(acceptance, slots, 4, Scratch(FillPolicy(mode), torch.device("cpu")))
        for mode in ("zeros", "garbage", "nan")
    ]
    for plan in plans:
        assert plan.src_loc.tolist() == [1, 3, 0, 0, 5, 0, 0, 0]
        assert plan.tgt_loc.tolist() == [1, 2, 0, 0, 5, 0, 0, 0]


@pytest.mark.parametrize("num_steps", [1, 3, 6])
def test_a_fully_accepted_chain_moves_every_slot_onto_itself(num_steps: int) -> None:
    tree_size = num_steps + 1
    acceptance = acceptance_of([list(range(tree_size))], tree_size, num_steps)
    slots = torch.arange(5, 5 + tree_size)
    plan = get_src_tgt_cache_loc(acceptance, slots, tree_size, GARBAGE)
    assert torch.equal(plan.src_loc, slots)
    assert torch.equal(plan.tgt_loc, slots)

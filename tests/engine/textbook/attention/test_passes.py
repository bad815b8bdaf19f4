"""Passes: sequences without keys, split keys, partial results, and slots that are in no pool."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.textbook.attention.executor import TorchAttention, merge_partial
from specdebug.engine.textbook.attention.planner import CascadeMetadata, PagedMetadata
from tests.engine.attention.cases import DIM, KV_HEADS, Q_HEADS, Case, build, dense, ragged_of, two_sequences

INT32 = torch.int32


@pytest.mark.parametrize("slots", [[10**6, 10**6 + 1], [-3, -2], [5, 10**6]])
@pytest.mark.parametrize("copies", [1, 2])
def test_slots_outside_the_pool_cannot_be_read(slots: list[int], copies: int) -> None:
    world = two_sequences()
    indptr = [2 * n for n in range(copies + 1)]
    plan = ragged_of(indptr, torch.tensor(slots * copies, dtype=INT32))
    attention = TorchAttention(plan, world.pool, torch.zeros(copies, dtype=torch.int64))
    one = torch.ones(copies, KV_HEADS, DIM)
    with pytest.raises(IllegalAddress, match=rf"attention\.kv_cache: .* of a pool of {world.pool.size}"):
        attention(0, torch.ones(copies, Q_HEADS, DIM), one, one)


def test_a_sequence_without_keys_attends_nothing() -> None:
    """Both ways a padded row can look: an empty list, and a length of zero."""
    world = two_sequences((3, 2))
    q, kv = torch.ones(2, Q_HEADS, DIM), torch.full((2, KV_HEADS, DIM), float("nan"))
    loc = torch.zeros(2, dtype=torch.int64)  # NaN goes to padding: nobody may see it
    ragged = ragged_of([0, 3, 3], world.slots(0, 0, 4).to(INT32))
    paged = PagedMetadata(
        torch.stack([world.slots(0, 0, 3), torch.zeros(3, dtype=torch.int64)]).to(INT32),
        torch.tensor([3, 0], dtype=INT32),
        torch.arange(3),
        1,
        page_size=1,
    )
    for plan in (ragged, paged):
        out = TorchAttention(plan, world.pool, loc)(0, q, kv, kv)
        assert not bool(out.isnan().any())
        assert bool((out[1] == 0).all())
        assert bool((out[0] != 0).any())


def test_a_cascade_with_an_empty_prefix_is_its_second_pass_alone() -> None:
    world = two_sequences((4,))
    slots = world.slots(0, 0, 4).to(INT32).unsqueeze(0)
    one = torch.arange(2, dtype=INT32)
    expand = PagedMetadata(slots, torch.tensor([4], dtype=INT32), one, 1, page_size=1, causal=False)
    prefix = PagedMetadata(slots * 0, torch.tensor([0], dtype=INT32), one, 1, page_size=1, causal=False)
    q, kv = torch.randn(1, Q_HEADS, DIM), torch.zeros(1, KV_HEADS, DIM)
    loc = torch.zeros(1, dtype=torch.int64)
    alone = TorchAttention(expand, world.pool, loc)(1, q, kv, kv)
    cascade = TorchAttention(CascadeMetadata(prefix, expand), world.pool, loc)(1, q, kv, kv)
    torch.testing.assert_close(cascade, alone)


@given(splits=st.integers(1, 9), lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_splitting_the_keys_changes_nothing_but_rounding(splits: int, lengths: list[int], seed: int) -> None:
    world = build(Case(tuple(lengths), 1, seed=seed))
    indices = torch.cat([world.slots(b, 0, n) for b, n in enumerate(lengths)])
    indptr = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    batch = len(lengths)
    plan = replace(ragged_of(indptr, indices), num_kv_splits=torch.full((batch,), splits, dtype=INT32))
    q, kv = world.draw(batch, Q_HEADS, DIM), torch.zeros(batch, KV_HEADS, DIM)
    found = TorchAttention(plan, world.pool, torch.zeros(batch, dtype=torch.int64))(0, q.float(), kv, kv)
    for b, length in enumerate(lengths):
        k, v = (tensor[0] for tensor in world.history[b])
        expected = dense(q[b : b + 1], k, v, torch.ones(1, length, dtype=torch.bool))
        torch.testing.assert_close(found[b : b + 1].double(), expected, atol=2e-5, rtol=2e-5)


@given(parts=st.integers(1, 4), seed=st.integers(0, 999), data=st.data())
@settings(max_examples=40)
def test_partial_results_merge_to_the_softmax_over_all_keys(parts: int, seed: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=parts, max_size=parts))
    scores = [10 * torch.randn(3, size, generator=generator, dtype=torch.float64) for size in sizes]
    values = [torch.randn(size, 2, generator=generator, dtype=torch.float64) for size in sizes]
    partial = [
        ((torch.softmax(s, dim=-1) @ v).nan_to_num(0.0), torch.logsumexp(s, dim=-1))
        for s, v in zip(scores, values, strict=True)
    ]
    merged, total = merge_partial(partial)
    every, all_values = torch.cat(scores, dim=1), torch.cat(values)
    torch.testing.assert_close(total, torch.logsumexp(every, dim=-1))
    expected = torch.softmax(every, dim=-1) @ all_values if sum(sizes) else torch.zeros(3, 2).double()
    torch.testing.assert_close(merged, expected)

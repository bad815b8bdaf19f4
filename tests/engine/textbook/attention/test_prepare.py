"""Metadata that no buffer could hold, and index lists that are shorter than they say."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from specdebug.engine.errors import IllegalAddress
from specdebug.engine.textbook.attention.executor import TorchAttention, prepare
from specdebug.engine.textbook.attention.planner import PagedMetadata, RaggedMetadata
from tests.engine.attention.cases import DIM, KV_HEADS, Q_HEADS, dense, ragged_of, two_sequences
from tests.tolerance import rounding

INT32 = torch.int32


@pytest.mark.parametrize("indptr", [[0, 4, 10**9], [0, 4, 2000]])
def test_a_sequence_longer_than_its_list_is_an_illegal_address(indptr: list[int]) -> None:
    world = two_sequences()
    with pytest.raises(IllegalAddress, match=r"attention\.kv_indptr: a sequence of \d+ keys"):
        TorchAttention(ragged_of(indptr, torch.zeros(8, dtype=INT32)), world.pool, world.rows)


@pytest.mark.parametrize("indptr", [[-99, -95, -91], [8, 12, 16], [2**31 - 5, 2**31 - 1, 2**31 - 1]])
def test_a_list_that_begins_elsewhere_is_an_illegal_address(indptr: list[int]) -> None:
    world = two_sequences()
    with pytest.raises(IllegalAddress, match=r"attention\.kv_indices"):
        TorchAttention(ragged_of(indptr, torch.zeros(8, dtype=INT32)), world.pool, world.rows)
    with pytest.raises(IllegalAddress, match=r"attention\.kv_indices"):
        TorchAttention(ragged_of(indptr[:2], torch.zeros(8, dtype=INT32)), world.pool, world.rows[:1])


def test_a_list_too_short_is_read_on_in_the_allocation_behind_it() -> None:
    """As from a device pointer: what lies there is believed."""
    world = two_sequences((6,))
    storage = world.slots(0, 0, 6).to(INT32)
    q, kv, loc = world.draw(1, Q_HEADS, DIM).float(), torch.zeros(1, KV_HEADS, DIM), torch.zeros(1).long()
    k, v = (tensor[0, 2:6] for tensor in world.history[0])
    plan = ragged_of([2, 6], storage[:4])
    found = TorchAttention(plan, world.pool, loc)(0, q, kv, kv)
    expected = dense(q.double(), k, v, torch.ones(1, 4, dtype=torch.bool)).float()
    torch.testing.assert_close(found, expected, **rounding(DIM, 4))


def test_a_length_that_no_page_table_could_hold_is_an_illegal_address() -> None:
    world = two_sequences()
    plan = PagedMetadata(
        torch.ones((2, 3), dtype=INT32), torch.tensor([4, 99], dtype=INT32), torch.arange(3), 1, page_size=4
    )
    with pytest.raises(IllegalAddress, match=r"attention\.cache_seqlens: a sequence of 99 keys in .* 24"):
        TorchAttention(plan, world.pool, world.rows)
    long = replace(plan, cache_seqlens=torch.tensor([4, 20], dtype=INT32))
    with pytest.raises(IllegalAddress, match=r"attention\.page_table"):
        TorchAttention(long, world.pool, world.rows)


@pytest.mark.parametrize(("q_len", "kept"), [(5, 1), (1000, 0)])
def test_the_mask_of_a_whole_prompt_is_not_kept(q_len: int, kept: int) -> None:
    """An engine that serves for long meets prompts of every length."""
    slots = torch.arange(2 * q_len, dtype=INT32)
    ends = torch.tensor([0, 2 * q_len], dtype=INT32)
    for _ in range(2):
        made = prepare(RaggedMetadata(ends, slots, torch.tensor([0, q_len], dtype=INT32), q_len))
        assert made.mask is not None
        assert made.mask.shape == (1, 1, q_len, 2 * q_len)
        assert made.mask[0, 0].isinf().sum() == q_len * (q_len - 1) / 2
        del made
    width = -(-2 * q_len // 512) * 512
    masks = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.shape == (1, 1, q_len, width)]
    assert len(masks) == kept

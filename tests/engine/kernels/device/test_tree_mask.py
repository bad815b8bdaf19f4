"""The flat mask on the device against the reference."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.kernels.tree_mask import flat_tree_mask
from tests.engine.kernels.device.arenas import guarded_outputs, memory, twin_arenas

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import tree_mask as twin


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    nodes=st.sampled_from([1, 3, 6]),
    spare=st.sampled_from([0, 7, -5, -100]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_masks_agree_bit_for_bit(device, lengths: list[int], nodes: int, spare: int, seed: int) -> None:
    """With bits to spare, and with too few: those that do not fit land behind."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.randint(0, 2, (len(lengths), nodes, nodes), generator=generator).to(torch.bool)
    total = sum((length + nodes) * nodes for length in lengths)
    here, there = twin_arenas(device, custom_mask=((max(total + spare, 1),), torch.bool), victim=((400,), torch.bool))
    starts = flat_tree_mask(mask, torch.tensor(lengths), here["custom_mask"])
    with mock.patch.multiple(twin, _TILE=8, _MAX_PROGRAMS=2), guarded_outputs():
        found = twin.flat_tree_mask(mask.to(device), torch.tensor(lengths, device=device), there["custom_mask"])
        assert found.dtype == torch.int64
        assert torch.equal(found.cpu(), starts)
    assert torch.equal(memory(there["custom_mask"]), memory(here["custom_mask"]))
    damage = here.check_guards()
    assert there.check_guards() == damage
    if spare >= 0:
        assert damage == []


def test_one_tree_for_all_requests(device) -> None:
    """A mask that repeats one tree has no memory of its own for each request."""
    tree = torch.ones(3, 3, dtype=torch.bool).tril()
    lengths = torch.tensor([2, 0])
    bits, expected = torch.zeros(24, dtype=torch.bool, device=device), torch.zeros(24, dtype=torch.bool)
    flat_tree_mask(tree.expand(2, -1, -1), lengths, expected)
    twin.flat_tree_mask(tree.to(device).expand(2, -1, -1), lengths.to(device), bits)
    assert torch.equal(bits.cpu(), expected)

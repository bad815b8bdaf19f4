"""Commit plans and compaction on the device against the references."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.kernels import commit as reference
from tests.engine.kernels.device.arenas import guarded_outputs, memory, twin_arenas
from tests.interpreter import float_types

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import commit as twin

SHAPES = [(2, 5), (9, 3), (4, 3), (6, 1)]  # tree_size, num_steps: trees smaller and larger than a path


@st.composite
def acceptances(draw: st.DrawFn) -> tuple[Tensor, int]:
    """accept_index int32 [B, S+1], nodes ascending from the root, and tree_size."""
    tree_size, num_steps = draw(st.sampled_from(SHAPES))
    index = []
    for b in range(draw(st.integers(1, 3))):
        drafts = draw(st.sets(st.integers(1, tree_size - 1), max_size=min(num_steps, tree_size - 1)))
        path = [b * tree_size + node for node in (0, *sorted(drafts))]
        index.append(path + [-1] * (num_steps + 1 - len(path)))
    return torch.tensor(index, dtype=torch.int32), tree_size


@given(accepted=acceptances(), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_only_accepted_entries_of_a_plan_are_written(device, accepted: tuple[Tensor, int], seed: int) -> None:
    """What the others hold is up to whoever allocated them: zeros, or on the reverted side anything."""
    index, tree_size = accepted
    shape = tuple(index.shape)
    slots = torch.randperm(shape[0] * tree_size, generator=torch.Generator().manual_seed(seed)) + 1
    here, there = twin_arenas(device, src_loc=(shape, torch.int64), tgt_loc=(shape, torch.int64))
    src, tgt = reference.accepted_locs(index, slots, tree_size, here["src_loc"], here["tgt_loc"])
    found = twin.accepted_locs(index.to(device), slots.to(device), tree_size, there["src_loc"], there["tgt_loc"])
    assert torch.equal(found[0].cpu(), src)
    assert torch.equal(found[1].cpu(), tgt)
    assert found[0].data_ptr() == there["src_loc"].data_ptr()
    assert torch.equal(memory(there["src_loc"])[: src.numel() * 8], memory(src))
    assert there.check_guards() == []


@pytest.mark.parametrize("dtype", float_types(), ids=str)
@pytest.mark.parametrize("tile", [8, 2048])
@given(accepted=acceptances(), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_accepted_rows_come_first(device, dtype, tile: int, accepted: tuple[Tensor, int], seed: int) -> None:
    index, tree_size = accepted
    generator = torch.Generator().manual_seed(seed)
    count = index.shape[0] * tree_size
    predict = torch.randint(0, 2**31 - 1, (count,), generator=generator, dtype=torch.int32)
    correct = (index >= 0).sum(dim=1, dtype=torch.int32) - 1
    features = torch.randn(count, 30, generator=generator).to(dtype)[:, 3:23]
    expected = reference.compact(index, predict, correct, features, tree_size)
    on_device = (index.to(device), predict.to(device), correct.to(device), features.to(device))
    with mock.patch.object(twin, "_MAX_TILE", tile), guarded_outputs():
        found = twin.compact(*on_device, tree_size)
        for left, right in zip(found, expected, strict=True):
            assert left.dtype == right.dtype
            assert torch.equal(left.cpu(), right)

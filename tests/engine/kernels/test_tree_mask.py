"""The flat mask against a loop over its bits."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.kernels.tree_mask import flat_tree_mask


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    nodes=st.integers(1, 6),
    spare=st.integers(0, 7),
    seed=st.integers(0, 99),
)
@settings(max_examples=80)
def test_every_row_is_the_prefix_and_then_the_tree(lengths: list[int], nodes: int, spare: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.randint(0, 2, (len(lengths), nodes, nodes), generator=generator).to(torch.bool)
    total = sum((length + nodes) * nodes for length in lengths)
    noise = torch.randint(0, 2, (total + spare,), generator=generator).to(torch.bool)
    bits = noise.clone()
    starts = flat_tree_mask(mask, torch.tensor(lengths), bits)
    expected: list[bool] = []
    for b, length in enumerate(lengths):
        assert int(starts[b]) == len(expected)
        for row in range(nodes):
            expected += [True] * length + mask[b, row].tolist()
    assert starts.dtype == torch.int64
    assert bits[:total].tolist() == expected
    assert torch.equal(bits[total:], noise[total:])

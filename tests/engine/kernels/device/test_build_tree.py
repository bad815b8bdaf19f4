"""Trees on the device against the reference: closed ones, and those whose parents were not chosen."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.engine.kernels.build_tree import build_tree
from tests.engine.kernels.device.arenas import guarded_outputs
from tests.engine.textbook.speculative.trees import Shape, candidate_trees, parent_of

pytest.importorskip("triton")

from specdebug.engine.kernels.triton import build_tree as twin

SHAPES = [Shape(2, 1, 2), Shape(4, 1, 4), Shape(2, 3, 5), Shape(3, 3, 9), Shape(4, 4, 17), Shape(2, 5, 19)]


def same_links(device: torch.device, parent_list: Tensor, chosen: Tensor, topk: int) -> None:
    expected = build_tree(parent_list, chosen, topk)
    with guarded_outputs():
        found = twin.build_tree(parent_list.to(device), chosen.to(device), topk)
        for field, left, right in zip(expected._fields, found, expected, strict=True):
            assert left.dtype == right.dtype, field
            assert torch.equal(left.cpu(), right), field


@given(data=st.data())
@settings(max_examples=15)
def test_closed_trees(device, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    candidates, _ = data.draw(candidate_trees(shape, batch=2, vocab=3))
    same_links(device, candidates.parent_list, candidates.top_scores_index, shape.topk)


@given(data=st.data())
@settings(max_examples=20)
def test_candidates_whose_parents_were_not_chosen(device, data: st.DataObject) -> None:
    """Also parents after their children and beyond the last node, which links send in circles."""
    shape = data.draw(st.sampled_from(SHAPES))
    candidates, _ = data.draw(candidate_trees(shape, batch=1, vocab=3))
    size, last = shape.tree_size - 1, shape.num_candidates - 1
    chosen = data.draw(st.lists(st.integers(0, last), min_size=size, max_size=size, unique=True))
    groups = candidates.parent_list
    if data.draw(st.booleans()):
        count = groups.shape[1]
        groups = torch.tensor([data.draw(st.lists(st.integers(-1, last), min_size=count, max_size=count))])
    same_links(device, groups.view(1, -1).to(torch.int64), torch.tensor([sorted(chosen)]), shape.topk)


NATIVELY = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
"""As large as engines on a GPU take them; interpreted, that would be half a minute."""


@pytest.mark.parametrize(
    "shape", [Shape(8, 6, 256), Shape(64, 3, 72), pytest.param(Shape(16, 6, 1024), marks=NATIVELY)], ids=str
)
def test_the_largest_trees(device, shape: Shape) -> None:
    rng = random.Random(5)
    topk, steps = shape.topk, shape.num_steps
    beams = list(range(-1, topk))
    for step in range(steps - 2):
        beams += [topk + topk * topk * step + c for c in rng.sample(range(topk * topk), topk)]
    chosen: set[int] = set()
    while len(chosen) < shape.tree_size - 1:
        candidate = rng.randrange(shape.num_candidates)
        if parent_of(candidate, beams, topk) in chosen | {-1}:
            chosen.add(candidate)
    same_links(device, torch.tensor([beams]), torch.tensor([sorted(chosen)]), topk)

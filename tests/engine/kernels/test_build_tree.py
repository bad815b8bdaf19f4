"""Links of chosen candidates against the definition of a tree, and where a parent was not chosen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.kernels.build_tree import build_tree
from tests.engine.textbook.speculative.trees import ancestors, candidate_trees, shapes


@settings(max_examples=100, derandomize=True)
@given(st.data())
def test_links_follow_from_parents(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    candidates, parents = data.draw(candidate_trees(shape, batch=2, vocab=3))
    links = build_tree(candidates.parent_list, candidates.top_scores_index, shape.topk)
    size = shape.tree_size
    assert links.mask.dtype == torch.bool
    assert tuple(links.mask.shape) == (2, size, size)
    for tensor in (links.parent, links.depth, links.next_token, links.next_sibling):
        assert tensor.dtype == torch.int64
    for b, parent in enumerate(parents):
        assert links.parent[b].tolist() == parent[1:]
        for node in range(size):
            above = ancestors(parent, node)
            assert int(links.depth[b, node]) == len(above) - 1
            assert links.mask[b, node].nonzero().flatten().tolist() == above
            children = [n for n, p in enumerate(parent) if p == node]
            assert int(links.next_token[b, node]) == (children[0] if children else -1)
            after = [n for n, p in enumerate(parent) if n > node > 0 and p == parent[node]]
            assert int(links.next_sibling[b, node]) == (after[0] if after else -1)


def test_a_parent_that_was_not_chosen_gives_the_node_after_its_place() -> None:
    """topk 2, two selections: candidates 2, 3 continue 0 and 4, 5 continue 1. Chosen are 0, 4 and 5, but not 1."""
    links = build_tree(torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 4, 5]]), 2)
    assert links.parent.tolist() == [[0, 2, 2]]
    assert links.next_token.tolist() == [[1, -1, 2, -1]]
    assert links.next_sibling.tolist() == [[-1, -1, 3, -1]]
    assert links.depth.tolist() == [[0, 1, 1, 2]], "node 2 is its own parent, so its path begins with it"
    assert links.mask[0].nonzero().tolist() == [[0, 0], [1, 0], [1, 1], [2, 2], [3, 2], [3, 3]]


def test_a_parent_after_all_that_was_chosen_keeps_its_number_and_links_to_the_last_node() -> None:
    links = build_tree(torch.tensor([[-1, 7, 7]]), torch.tensor([[1, 2, 3]]), 2)
    assert links.parent.tolist() == [[0, 4, 4]], "a probe must see that there is no such node"
    assert links.next_token.tolist() == [[1, -1, -1, 2]]
    assert links.next_sibling.tolist() == [[-1, -1, 3, -1]]
    assert links.depth.tolist() == [[0, 1, 1, 1]]


def test_candidates_without_groups_hang_on_the_root() -> None:
    links = build_tree(torch.empty(2, 0, dtype=torch.int64), torch.tensor([[0, 2], [1, 3]]), 4)
    assert links.parent.tolist() == [[0, 0], [0, 0]]
    assert links.next_token.tolist() == [[1, -1, -1]] * 2
    assert links.next_sibling.tolist() == [[-1, 2, -1]] * 2


def test_a_candidate_of_no_group_is_an_error() -> None:
    with pytest.raises(IndexError):
        build_tree(torch.tensor([[-1, 0]]), torch.tensor([[0, 9]]), 2)

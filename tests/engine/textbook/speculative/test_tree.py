"""Trees against plain recursion: links, mask and positions of every shape, and what bad candidates may do."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdebug.engine.textbook.speculative.tree import DraftCandidates
from tests.engine.textbook.speculative.trees import (
    Shape,
    ancestors,
    candidate_trees,
    children_by_links,
    paths_by_links,
    shapes,
)

VOCAB = 50


@settings(max_examples=150, derandomize=True)
@given(st.data())
def test_tree_is_what_recursion_over_parents_gives(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    candidates, parents = data.draw(candidate_trees(shape, batch=2, vocab=VOCAB))
    bonus, seq_lens = torch.tensor([3, 4]), torch.tensor([7, 100])
    tree = shape.builder().build(candidates, bonus, seq_lens)
    for b, parent in enumerate(parents):
        assert tree.tokens[b].tolist() == [int(bonus[b]), *candidates.draft_tokens[b].tolist()]
        for node in range(shape.tree_size):
            above = ancestors(parent, node)
            assert tree.mask[b, node].nonzero().flatten().tolist() == above
            assert int(tree.positions[b, node]) == int(seq_lens[b]) + len(above) - 1
            children = [n for n, p in enumerate(parent) if p == node]
            assert children_by_links(tree, b, node) == children, "best first: the lowest candidate number"


@settings(max_examples=150, derandomize=True)
@given(st.data())
def test_unclosed_candidates_still_give_a_tree_that_can_be_walked(data: st.DataObject) -> None:
    """NaN scores can choose a candidate without its parent. What acceptance reaches must be coherent even so:
    each node once, and with a mask that is exactly its path, else verification itself would be wrong.
    """
    shape = data.draw(shapes())
    candidates, _ = data.draw(candidate_trees(shape, batch=1, vocab=VOCAB))
    numbers = st.integers(0, shape.num_candidates - 1)
    chosen = data.draw(st.lists(numbers, min_size=shape.tree_size - 1, max_size=shape.tree_size - 1, unique=True))
    unclosed = DraftCandidates(candidates.parent_list, torch.tensor([sorted(chosen)]), candidates.draft_tokens)
    tree = shape.builder().build(unclosed, torch.tensor([0]), torch.tensor([10]))
    for node, path in paths_by_links(tree, 0).items():
        if len(path) > shape.num_steps + 1:
            continue  # acceptance never goes this deep
        assert tree.mask[0, node].nonzero().flatten().tolist() == sorted(path)
        assert int(tree.positions[0, node]) == 10 + len(path) - 1


def test_chain_has_one_child_each_and_a_causal_mask() -> None:
    shape = Shape(1, 3, 4)
    candidates = DraftCandidates(torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 1, 2]]), torch.tensor([[5, 6, 7]]))
    tree = shape.builder().build(candidates, torch.tensor([4]), torch.tensor([9]))
    assert tree.tokens.tolist() == [[4, 5, 6, 7]]
    assert tree.positions.tolist() == [[9, 10, 11, 12]]
    assert tree.retrieve_next_token.tolist() == [[1, 2, 3, -1]]
    assert tree.retrieve_next_sibling.tolist() == [[-1, -1, -1, -1]]
    assert torch.equal(tree.mask[0], torch.ones(4, 4, dtype=torch.bool).tril())

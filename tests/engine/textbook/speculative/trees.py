"""Random candidate trees and what is true of them, worked out by plain recursion."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from specdebug.engine.textbook.speculative.tree import DraftCandidates, TreeBuilder, VerifyTree


@dataclass(frozen=True)
class Shape:
    """topk, num_steps and tree_size that go together."""

    topk: int
    num_steps: int
    tree_size: int

    @property
    def num_candidates(self) -> int:
        return self.topk + self.topk**2 * (self.num_steps - 1)

    def builder(self) -> TreeBuilder:
        return TreeBuilder(topk=self.topk, tree_size=self.tree_size, device=torch.device("cpu"))


@st.composite
def shapes(draw: st.DrawFn, min_topk: int = 2, max_topk: int = 5, max_nodes: int = 24) -> Shape:
    topk = draw(st.integers(min_topk, max_topk))
    steps = draw(st.integers(1, 5))
    if topk == 1:
        return Shape(1, steps, steps + 1)
    most = min(max_nodes, 1 + topk + topk**2 * (steps - 1))
    return Shape(topk, steps, draw(st.integers(2, most)))


def parent_of(candidate: int, parent_list: list[int], topk: int) -> int:
    """The candidate that ``candidate`` continues, -1 for the root."""
    return parent_list[candidate // topk] if parent_list else -1


@st.composite
def parent_lists(draw: st.DrawFn, shape: Shape) -> list[int]:
    """What a draft loop could have kept: group 0 hangs on the root, others on a beam of the step before."""
    topk, steps = shape.topk, shape.num_steps
    if steps == 1:
        return []
    beams = list(range(-1, topk))
    for step in range(steps - 2):
        choice = draw(st.permutations(range(topk * topk)))[:topk]
        beams += [topk + topk * topk * step + c for c in choice]
    return beams


@st.composite
def closed_choices(draw: st.DrawFn, shape: Shape, parent_list: list[int]) -> list[int]:
    """tree_size - 1 candidates, ascending, each with its parent among them."""
    topk = shape.topk
    chosen: set[int] = set()
    while len(chosen) < shape.tree_size - 1:
        open_ = [
            c
            for c in range(shape.num_candidates)
            if c not in chosen and parent_of(c, parent_list, topk) in chosen | {-1}
        ]
        chosen.add(draw(st.sampled_from(open_)))
    return sorted(chosen)


@st.composite
def candidate_trees(draw: st.DrawFn, shape: Shape, batch: int, vocab: int) -> tuple[DraftCandidates, list[list[int]]]:
    """Candidates of ``batch`` trees, and each tree's node parents (entry 0, the root's, is -1)."""
    lists, choices, tokens, parents = [], [], [], []
    for _ in range(batch):
        parent_list = draw(parent_lists(shape))
        chosen = draw(closed_choices(shape, parent_list))
        node = {candidate: number + 1 for number, candidate in enumerate(chosen)} | {-1: 0}
        lists.append(parent_list)
        choices.append(chosen)
        parents.append([-1] + [node[parent_of(c, parent_list, shape.topk)] for c in chosen])
        tokens.append([draw(st.integers(0, vocab - 1)) for _ in chosen])
    candidates = DraftCandidates(
        torch.tensor(lists, dtype=torch.int64).view(batch, -1),
        torch.tensor(choices, dtype=torch.int64).view(batch, -1),
        torch.tensor(tokens, dtype=torch.int64).view(batch, -1),
    )
    return candidates, parents


def ancestors(parents: list[int], node: int) -> list[int]:
    """``node`` and everything above it, from the root down."""
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def children_by_links(tree: VerifyTree, row: int, node: int) -> list[int]:
    """The children of ``node`` in the order in which acceptance tries them."""
    found = []
    child = int(tree.retrieve_next_token[row, node])
    while child >= 0:
        assert child not in found, "the sibling links do not end"
        found.append(child)
        child = int(tree.retrieve_next_sibling[row, child])
    return found


def paths_by_links(tree: VerifyTree, row: int) -> dict[int, list[int]]:
    """Every node that the links reach, with its path from the root; fails if one is reached twice."""
    paths = {0: [0]}
    queue = [0]
    while queue:
        node = queue.pop(0)
        for child in children_by_links(tree, row, node):
            assert child not in paths, f"node {child} is reached twice"
            paths[child] = [*paths[node], child]
            queue.append(child)
    return paths

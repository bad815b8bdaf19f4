"""Drafts after many prefixes at once, against one prefix at a time whose branches keep what was written in them."""

import dataclasses
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.reference.draft import DraftHead, draft_kv, draft_logits, draft_unroll, to_target_ids
from specdebug.reference.drafting import Branches, Guide, TreeShape
from specdebug.reference.texts import HeadText
from tests.reference.stepping import draft_step
from tests.reference.test_draft import NEAR, make_head
from tests.reference.test_tree import KINDS, LENGTH, SHAPES, text

LENGTHS = torch.arange(1, LENGTH)
CLEAR = 1e-4
"""Scores that are nearer to each other are put in order by rounding."""

Path = tuple[int, ...]


@dataclass
class Tree:
    """The paths of a tree; ``gap``: the least by which anything was chosen. ``forwards``: of each forward, what each
    branch read, the branch of its parent and the log-probabilities that came of it. ``scored``: the log-probability of
    each path that was looked at."""

    paths: list[Path]
    gap: float
    forwards: list[list[tuple[int, int, Tensor]]] = field(default_factory=list)
    scored: dict[Path, float] = field(default_factory=dict)


def best(scored: dict[Path, float], count: int, *, ordered: bool = False) -> tuple[list[Path], float]:
    """The best ``count`` paths, and by how much they are that; ``ordered``: in this order, too."""
    ranked = sorted(scored, key=lambda path: -scored[path])
    values = [scored[path] for path in ranked[: count + 1]]
    gaps = [left - right for left, right in pairwise(values)]
    return ranked[:count], min(gaps if ordered else gaps[count - 1 :], default=1.0)


def output_at(head: DraftHead, ids: Tensor, features: Tensor, length: int) -> Tensor:
    return draft_unroll(head, ids[1 : length + 1], features[:length], 1)[0][-1]


def grown(
    head: DraftHead, ids: Tensor, features: Tensor, length: int, shape: TreeShape, *, backwards: bool = False
) -> Tree:
    """The tree behind a prefix: each branch a cache of its own, that stays where it is. ``backwards``: the best path of
    the first level lies in the last branch."""
    k, v = draft_kv(head, ids[1 : length + 1], features[:length], torch.arange(length))
    caches = [(k[None], v[None])] * shape.topk
    hidden = {(): output_at(head, ids, features, length)}
    scored: dict[Path, float] = {}
    beam: list[Path] = [()]
    gaps = []
    forwards: list[list[tuple[int, int, Tensor]]] = [[] for _ in range(shape.num_steps)]
    before: list[Path] = []
    for depth in range(shape.num_steps):
        level: dict[Path, float] = {}
        for branch, path in enumerate(beam):
            if depth:
                token, state = torch.tensor([[path[-1]]]), hidden[path[:-1]].view(1, 1, -1)
                output, caches[branch] = draft_step(head, token, state, length - 1 + depth, caches[branch])
                hidden[path] = output.view(-1)
            logs = draft_logits(head, hidden[path]).float().log_softmax(-1)
            if depth:
                forwards[depth].append((path[-1], before.index(path[:-1]) if depth > 1 else branch, logs))
            tokens = to_target_ids(head, torch.arange(len(logs))).tolist()
            own = {(*path, token): log for token, log in zip(tokens, logs.tolist(), strict=True)}
            kept, gap = best(own, shape.topk)
            gaps.append(gap)
            level |= {each: scored.get(path, 0.0) + own[each] for each in kept}
        scored |= level
        before = beam
        beam, gap = best(level, shape.topk, ordered=True)
        gaps.append(gap)
        if backwards and not depth:  # at every level, it would be the same branches by other names
            beam.reverse()
    paths, gap = best(scored, shape.tree_size - 1)
    return Tree(paths, min(*gaps, gap), forwards[1:], scored)


def paths_of(tokens: Tensor) -> list[Path]:
    return [tuple(token for token in row if token >= 0) for row in tokens.tolist()]


def no_guide(shape: TreeShape) -> Guide:
    """Trees of a root alone."""
    nobody = torch.full((len(LENGTHS), shape.tree_size), -1)
    return Guide(torch.zeros_like(nobody), nobody, 0.0)


def guide_of(trees: list[Tree], shape: TreeShape, margin: float) -> Guide:
    tokens = torch.zeros(len(trees), shape.tree_size, dtype=torch.int64)
    parents = torch.full_like(tokens, -1)
    for row, tree in enumerate(trees):
        at = {(): 0} | {path: node for node, path in enumerate(sorted(tree.paths, key=len), 1)}
        for path, node in list(at.items())[1:]:
            tokens[row, node], parents[row, node] = path[-1], at[path[:-1]]
    return Guide(tokens, parents, margin)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 10_000))
def test_trees_are_those_of_branches_that_keep_what_was_written(kind: str, shape: TreeShape, seed: int) -> None:
    head, (ids, features) = make_head(kind, seed), text(kind, seed)
    drafted = HeadText(head, ids, features)
    trees = [grown(head, ids, features, length, shape) for length in LENGTHS.tolist()]
    alone = drafted.grow(LENGTHS, drafted.outputs(LENGTHS), shape, no_guide(shape))
    guided = drafted.grow(LENGTHS, drafted.outputs(LENGTHS), shape, guide_of(trees, shape, 1e-6))
    for row, tree in enumerate(trees):
        if tree.gap < CLEAR:
            continue
        assert set(paths_of(alone.paths[row])) == set(tree.paths)
        assert (alone.node[row] == -1).all()
        assert set(guided.node[row].tolist()) == set(range(1, shape.tree_size))
        assert guided.scores[row, 1:].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.num_steps > 1], ids=str)
def test_logits_along_given_branches_are_those_of_branches_that_keep_what_was_written(
    kind: str, shape: TreeShape
) -> None:
    head, (ids, features) = make_head(kind), text(kind, 3)
    drafted = HeadText(head, ids, features)
    trees = [grown(head, ids, features, length, shape).forwards for length in LENGTHS.tolist()]
    tokens, parents = (
        torch.tensor([[[branch[part] for branch in forward] for forward in tree] for tree in trees]) for part in (0, 1)
    )
    alone = torch.stack(
        [torch.stack([torch.stack([logs for _, _, logs in forward]) for forward in tree]) for tree in trees]
    )
    logits = drafted.follow(LENGTHS, drafted.outputs(LENGTHS), tokens, parents)
    torch.testing.assert_close(logits.log_softmax(-1), alone, **NEAR)


def test_a_guide_decides_where_a_choice_is_narrow_and_only_there() -> None:
    head, (ids, features), shape = make_head("eagle"), text("eagle", 0), TreeShape(1, 1, 2)
    drafted = HeadText(head, ids, features)
    outputs = drafted.outputs(LENGTHS)
    logits = drafted.logits(outputs)
    second = logits.topk(2).indices[:, 1].tolist()
    trees = [Tree([(token,)], 1.0) for token in second]
    nodes = {
        margin: drafted.grow(LENGTHS, outputs, shape, guide_of(trees, shape, margin)).node.flatten()
        for margin in (0.0, 2.0)
    }
    assert (nodes[0.0] == -1).all()
    assert (nodes[2.0] == 1).all(), "with a margin of twice the largest logit any choice is narrow"


@pytest.mark.parametrize("kind", KINDS)
def test_paths_lie_in_the_branches_in_which_they_were_drafted_if_that_can_be(kind: str) -> None:
    """What a branch wrote before is read by the branches that lie in it later: of two paths that are all but equally
    likely, which lies in the first decides what both attend to."""
    head, (ids, features), shape = make_head(kind), text(kind, 4), TreeShape(2, 4, 12)
    drafted = HeadText(head, ids, features)
    outputs = drafted.outputs(LENGTHS)
    forwards, backwards = (
        [grown(head, ids, features, length, shape, backwards=way) for length in LENGTHS.tolist()]
        for way in (False, True)
    )
    told = Branches(
        *(
            torch.tensor([[[branch[part] for branch in forward] for forward in tree.forwards] for tree in backwards])
            for part in (0, 1)
        )
    )

    def scores(trees: list[Tree], margin: float, branches: Branches | None) -> list[dict[Path, float]]:
        guide = dataclasses.replace(guide_of(trees, shape, margin), drafted=branches)
        rows = drafted.grow(LENGTHS, outputs, shape, guide).scores.tolist()
        each = zip(trees, rows, strict=True)
        return [dict(zip(sorted(tree.paths, key=len), row[1:], strict=True)) for tree, row in each]

    def scored(trees: list[Tree]) -> list[dict[Path, float]]:
        return [{path: tree.scored[path] for path in tree.paths} for tree in trees]

    assert scores(forwards, 1e-6, told) == [pytest.approx(each, abs=CLEAR) for each in scored(forwards)]
    narrow = scores(backwards, 2.0, told)
    assert narrow == [pytest.approx(each, abs=CLEAR) for each in scored(backwards)]
    moved = [path for one, other in zip(scored(forwards), narrow, strict=True) for path in one.keys() & other.keys()
             if abs(one[path] - other[path]) > 2 * CLEAR]  # fmt: skip
    assert moved, "which branch a path lies in made no difference to anything"

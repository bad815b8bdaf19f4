"""How a path stands with a draft tree, against trees that are grown plainly: every path by itself, all of it again."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdebug.reference.draft import DraftHead, draft_logits, draft_unroll, to_target_ids
from specdebug.reference.drafting import PathStanding, TreeShape, standing
from specdebug.reference.texts import HeadText
from tests.reference.test_draft import make_head

LENGTH = 7
SHAPES = (TreeShape(1, 3, 4), TreeShape(2, 3, 5), TreeShape(3, 2, 6), TreeShape(3, 3, 4))
KINDS = ("eagle", "eagle3", "nextn")


def text(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens, and what the head reads of the target at all but the last."""
    generator = torch.Generator().manual_seed(seed)
    width = 96 if kind == "eagle3" else 32
    ids = torch.randint(0, 50, (LENGTH,), generator=generator)
    return ids, torch.randn(LENGTH - 1, width, generator=generator, dtype=torch.float64)


def continuations(head: DraftHead, ids: Tensor, hidden: Tensor, path: tuple[int, ...]) -> dict[int, float]:
    """Log-probability of every token after ``path``."""
    next_ids = torch.cat([ids[1:], torch.tensor(path, dtype=torch.int64)])
    known = torch.cat([hidden, torch.zeros(len(path), hidden.shape[1], dtype=hidden.dtype)])
    output = draft_unroll(head, next_ids, known, len(path) + 1)[-1][-1]
    logs = draft_logits(head, output).float().log_softmax(-1)
    tokens = to_target_ids(head, torch.arange(len(logs)))
    return dict(zip(tokens.tolist(), logs.tolist(), strict=True))


def tree(head: DraftHead, ids: Tensor, hidden: Tensor, shape: TreeShape) -> set[tuple[int, ...]]:
    """Every path in the tree."""
    beam: dict[tuple[int, ...], float] = {(): 0.0}
    scored: dict[tuple[int, ...], float] = {}
    for _ in range(shape.num_steps):
        grown = {}
        for path, score in beam.items():
            after = continuations(head, ids, hidden, path)
            for token in sorted(after, key=lambda each: -after[each])[: shape.topk]:
                grown[(*path, token)] = score + after[token]
        scored |= grown
        beam = {path: grown[path] for path in sorted(grown, key=lambda each: -grown[each])[: shape.topk]}
    return set(sorted(scored, key=lambda each: -scored[each])[: shape.tree_size - 1])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 10_000), data=st.data())
def test_a_path_is_in_the_tree_when_it_has_slack(kind: str, shape: TreeShape, seed: int, data: st.DataObject) -> None:
    head, (ids, hidden) = make_head(kind, seed), text(kind, seed)
    members = tree(head, ids, hidden, shape)
    vocabulary = list(continuations(head, ids, hidden, ()))
    others = data.draw(
        st.lists(st.lists(st.sampled_from(vocabulary), min_size=1, max_size=shape.num_steps).map(tuple), max_size=6)
    )
    siblings = {(*path[:-1], token) for path in members for token in vocabulary[:3]}
    for path in itertools.chain(members, others, siblings):
        found = standing(HeadText(head, ids, hidden), LENGTH - 1, path, shape)
        assert found.size > 0
        if abs(found.slack) > 1e-3:  # nearer to the edge, the rounding of either side decides
            assert (found.slack > 0) == (path in members), path


def test_a_token_that_the_head_does_not_have_is_never_drafted() -> None:
    head, (ids, hidden) = make_head("eagle3"), text("eagle3", 0)
    absent = min(set(range(50)) - set(continuations(head, ids, hidden, ())))
    found = standing(HeadText(head, ids, hidden), LENGTH - 1, [absent], TreeShape(2, 2, 4))
    assert found == PathStanding(float("-inf"), found.size)

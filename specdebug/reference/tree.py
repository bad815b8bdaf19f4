"""The draft tree, dense: the continuations that a draft proposes, and how narrowly one of them is among them.

A tree grows level by level. The roots are the K best tokens; of every level the K best paths go on, each to its K best
tokens; a path's score is the sum of its log-probabilities. The tree has the best T - 1 of all that were scored. So a
path is in the tree if at every depth its token is among the K best of its parent, its score is among the best T - 1,
and, while it is to go on, it is among the K best of its level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from specdebug.reference.drafting import DraftedText


@dataclass(frozen=True)
class TreeShape:
    """A tree's branches K, its depth S and its nodes T, the root included."""

    topk: int
    num_steps: int
    tree_size: int


@dataclass(frozen=True)
class PathStanding:
    """The standing of a path with a draft's tree."""

    slack: float  # the log-probability that it could lose and stay in the tree, or below 0, that it lacks
    size: float  # the largest magnitude among the logits it was judged by


@dataclass(frozen=True)
class _Path:
    """A path with its score, its parent's output [1, H], and the state of the branch that it alone lies in."""

    tokens: tuple[int, ...]
    score: float
    hidden: Tensor
    state: Any


@dataclass(frozen=True)
class _Grown:
    """The continuations of a path. ``ranked`` tokens and their ``logs``, best first; ``size``: of the logits."""

    parent: _Path
    output: Tensor
    state: Any
    ranked: list[int]
    logs: list[float]
    size: float

    def child(self, rank: int) -> _Path:
        tokens = (*self.parent.tokens, self.ranked[rank])
        return _Path(tokens, self.parent.score + self.logs[rank], self.output, self.state)


@torch.no_grad()
def standing(text: DraftedText[Any], length: int, path: Sequence[int], shape: TreeShape) -> PathStanding:
    """The standing of ``path``, of 1 to ``num_steps`` tokens, with the tree that is drafted behind the ``length`` first
    positions of a text. Each path keeps what was written along it."""
    wanted, lengths = tuple(path), torch.tensor([length])
    beam = [_Path((), 0.0, text.outputs(lengths), text.begin(lengths, 1))]
    stray: _Path | None = None  # the path where it is in no beam: followed all the same, to see what it lacks
    scored: list[float] = []
    ours = float("-inf")
    slacks: list[float] = []
    size = 0.0
    for depth in range(shape.num_steps):
        grown = [_grow(text, each) for each in (*beam, *([stray] if stray else []))]
        children = [one.child(rank) for one in grown[: len(beam)] for rank in range(min(shape.topk, len(one.ranked)))]
        children.sort(key=lambda child: -child.score)
        scored += [child.score for child in children]
        beam, stray = children[: shape.topk], None
        if depth >= len(wanted):
            continue
        parent = next(one for one in reversed(grown) if one.parent.tokens == wanted[:depth])
        size = max(size, parent.size)
        if wanted[depth] not in parent.ranked:
            return PathStanding(float("-inf"), size)
        rank = parent.ranked.index(wanted[depth])
        path_now = parent.child(rank)
        slacks.append(_slack(parent.logs, path_now.score - parent.parent.score, shape.topk))
        if depth + 1 < len(wanted):
            slacks.append(_slack([child.score for child in children], path_now.score, shape.topk))
            stray = None if any(each.tokens == path_now.tokens for each in beam) else path_now
        ours = path_now.score
    slacks.append(_slack(sorted(scored, reverse=True), ours, shape.tree_size - 1))
    lacking = [slack for slack in slacks if slack < 0]
    return PathStanding(min(lacking or slacks), size)


def _grow(text: DraftedText[Any], path: _Path) -> _Grown:
    """Grow a path by one step of the draft; what follows the text itself, the text's outputs say."""
    output, state, depth = path.hidden, path.state, len(path.tokens)
    if depth:
        output, state = text.step(state, torch.tensor(path.tokens[-1:]), output, depth)
    logits = text.logits(output[0], depth)
    logs, ranked = logits.log_softmax(-1).sort(descending=True)
    return _Grown(path, output, state, text.target_ids(ranked).tolist(), logs.tolist(), float(logits.abs().max()))


def _slack(descending: Sequence[float], value: float, kept: int) -> float:
    """The margin by which ``value`` is among the ``kept`` greatest, or below 0, misses that."""
    if kept >= len(descending):
        return float("inf")
    last, next_one = descending[kept - 1], descending[kept]
    return value - next_one if value >= last else value - last

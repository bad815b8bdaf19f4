"""A draft's drafts after many prefixes of one text, all of them at once, and how narrowly one of them is drafted.

A tree grows level by level. The roots are the K best tokens; of every level the K best paths go on, each to its K best
tokens; a path's score is the sum of its log-probabilities. The tree has the best T - 1 of all that were scored. So a
path is in the tree if at every depth its token is among the K best of its parent, its score is among the best T - 1,
and, while it is to go on, it is among the K best of its level (``standing``).

Row r stands for a prefix of L tokens with target states, and the token behind them. An EAGLE head's output at L - 1 is
what an engine stores for its next draft; the tree that grows from there (``DraftedText.grow``) is that one but for one
thing, in which it is as engines draft. The paths of a level lie in K branches, whose keys and values stay where they
were written: a path that goes on in another branch attends to what that branch wrote before, and not to its own keys
and values. (Hidden states do move with their path.) SGLang's draft loop is like that.

How a draft reads the text and its own drafts is in ``texts.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor


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


@dataclass(frozen=True)
class Branches:
    """K branches say what they read at each forward of a draft loop, int64 [n, S - 1, K]: ``tokens``, and beside each
    the output of the forward before it of the branch ``parents``, which at the first are their own."""

    tokens: Tensor
    parents: Tensor


@dataclass(frozen=True)
class Guide:
    """Trees [n, T] to lean towards where a choice is narrow: ``tokens``, and the node that each continues (the root
    none, -1), int64. ``margin``: the part of the largest logit within which a choice is narrow, for each level.
    ``drafted``: in which branches they were drafted, where that is known: of two paths that are all but equally likely
    either may lie in the first."""

    tokens: Tensor
    parents: Tensor
    margin: float
    drafted: Branches | None = None


@dataclass(frozen=True)
class Grown:
    """The head's trees beside those of a :class:`Guide`. ``node``: int64 [n, T - 1], the guide's node that each chosen
    candidate is, -1 for one that it lacks; ``paths``: int64 [n, T - 1, S], the candidates' tokens, -1 after their ends.
    ``scores``, ``allowed``: [n, T], the log-probability of each node that was scored and how much of it is rounding;
    NaN for others."""

    node: Tensor
    paths: Tensor
    scores: Tensor
    allowed: Tensor


@dataclass(frozen=True)
class _Beam:
    """Paths [n, B]: tokens [n, B, depth], the guide's node, score and rounding of each, and their parents' output
    [n·B, H]."""

    tokens: Tensor
    node: Tensor
    score: Tensor
    allowed: Tensor
    hidden: Tensor


State = TypeVar("State")
"""What the branches of a draft have come to."""


class DraftedText(ABC, Generic[State]):
    """A draft that has read a text: int64 ids [m + 1], of which the last has no target state."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Tokens that the draft can read."""

    @abstractmethod
    def outputs(self, lengths: Tensor) -> Tensor:
        """What the first drafts behind each prefix of int64 [n] ``lengths`` are read from: [n, H]."""

    @abstractmethod
    def stored(self, lengths: Tensor, outputs: Tensor) -> Tensor:
        """What an engine keeps behind each prefix for its next draft, [n, ...]; ``outputs`` as of these lengths. NaN
        where the text has no such position."""

    @abstractmethod
    def logits(self, outputs: Tensor, depth: int = 0) -> Tensor:
        """Logits [..., Vd] over the draft's vocabulary, of outputs [..., H] behind ``depth`` drafts."""

    @abstractmethod
    def begin(self, lengths: Tensor, width: int) -> State:
        """The state of ``width`` branches behind each prefix, in which nothing is drafted."""

    @abstractmethod
    def step(self, state: State, tokens: Tensor, hidden: Tensor, depth: int) -> tuple[Tensor, State]:
        """Draft in all branches behind ``depth`` drafts, the last of which are int64 [R] ``tokens``, beside outputs
        [R, H] that each reads: outputs [R, H], and the state after them."""

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's ids of the draft's."""
        return draft_ids

    def draft_ids(self, target_ids: Tensor) -> Tensor:
        """The draft's ids of the target's, -1 for those that it cannot draft."""
        return target_ids

    def grow(self, lengths: Tensor, outputs: Tensor, shape: TreeShape, guide: Guide) -> Grown:
        """Grow a tree behind each prefix, from the ``outputs`` there. Every choice that is narrow goes the way
        of the guide's tree: so these are the guide's trees if, and only if, rounding alone can make them."""
        n, topk = len(lengths), shape.topk
        goes_on = torch.zeros_like(guide.tokens, dtype=torch.bool)
        goes_on.scatter_(1, guide.parents.clamp_min(0), guide.parents >= 0)
        none = torch.zeros(n, 1)
        start = _Beam(none[..., None][..., :0].long(), none.long(), none, none, outputs)
        level = self._children(start, outputs, guide, topk, 0)
        levels = [level]
        beam = _taken(level, _in_branches(level, level.score.topk(level.score.shape[1], dim=1).indices, guide, 0))
        width = beam.node.shape[1]
        state = self.begin(lengths, width)
        for depth in range(1, shape.num_steps):
            hidden, state = self.step(state, beam.tokens[..., -1].flatten(), beam.hidden, depth)
            level = self._children(beam, hidden, guide, topk, depth)
            levels.append(level)
            in_tree = goes_on.gather(1, level.node.clamp_min(0)) & (level.node >= 0)
            best = (level.score + level.allowed * in_tree).topk(width, dim=1).indices
            beam = _taken(level, _in_branches(level, best, guide, depth))
        return _chosen(levels, guide, shape)

    def follow(self, lengths: Tensor, outputs: Tensor, tokens: Tensor, parents: Tensor) -> Tensor:
        """The logits [n, S - 1, K, Vd] along given branches, from the ``outputs`` behind each prefix.

        tokens: int64 [n, S - 1, K], what each branch reads at each forward. parents: int64, as many, the branch whose
        output of the forward before it reads beside that.
        """
        n, forwards, width = tokens.shape
        first_row = torch.arange(0, n * width, width)[:, None]
        hidden = outputs.repeat_interleave(width, 0)
        state = self.begin(lengths, width)
        logits = []
        for step in range(forwards):
            if step:
                hidden = hidden[(first_row + parents[:, step]).flatten()]
            hidden, state = self.step(state, tokens[:, step].flatten(), hidden, step + 1)
            logits.append(self.logits(hidden, step + 1).view(n, width, -1))
        return torch.stack(logits, dim=1)

    def _children(self, beam: _Beam, outputs: Tensor, guide: Guide, topk: int, depth: int) -> _Beam:
        """The ``topk`` best continuations of every path, the paths' children one after another."""
        n, width, _ = beam.tokens.shape
        logits = self.logits(outputs, depth).view(n, width, -1)
        logs = logits.log_softmax(-1)
        allowed = guide.margin * logits.abs().amax(-1)
        ours = (guide.parents[:, None] == beam.node[..., None]) & (beam.node >= 0)[..., None]  # [n, width, T]
        ids = self.draft_ids(guide.tokens)
        ours &= (ids >= 0)[:, None]
        lean = ours * allowed[..., None]
        leaned = logs.scatter_add(2, ids.clamp_min(0)[:, None].expand_as(lean), lean)
        best = leaned.topk(min(topk, logs.shape[-1]), dim=-1).indices  # [n, width, K]
        found = ours[:, :, None] & (ids[:, None, None] == best[..., None])  # [n, width, K, T]
        node = torch.where(found.any(-1), found.int().argmax(-1), -1)
        each = best.shape[-1]
        tokens = torch.cat([beam.tokens[:, :, None].expand(-1, -1, each, -1), self.target_ids(best)[..., None]], dim=-1)
        return _Beam(
            tokens.view(n, width * each, depth + 1),
            node.flatten(1),
            (beam.score[..., None] + logs.gather(-1, best)).flatten(1),
            (beam.allowed + allowed)[..., None].expand(-1, -1, each).flatten(1),
            outputs.repeat_interleave(each, 0),
        )


def _in_branches(level: _Beam, best: Tensor, guide: Guide, forward: int) -> Tensor:
    """The places int64 [n, K] of a level's paths in the order of the branches that they lie in: those of the guide
    where rounding alone can make them, else the ``best``, likeliest first."""
    ranked = best.gather(1, level.score.gather(1, best).argsort(dim=1, descending=True))
    drafted = guide.drafted
    if drafted is None or forward >= drafted.tokens.shape[1]:
        return ranked
    parents = drafted.parents[:, forward] if forward else torch.zeros_like(drafted.parents[:, 0])
    each = level.score.shape[1] // best.shape[1] if forward else level.score.shape[1]
    of_parent = torch.arange(level.score.shape[1]) // each
    same = (of_parent == parents[..., None]) & (level.tokens[:, None, :, -1] == drafted.tokens[:, forward, :, None])
    places = same.int().argmax(-1)
    score, allowed = level.score.gather(1, places), level.allowed.gather(1, places)
    distinct = places.sort(dim=1).values.diff(dim=1).ne(0).all(1)
    among_best = (score >= level.score.topk(best.shape[1], dim=1).values[:, -1:] - allowed).all(1)
    in_order = (score[:, :-1] >= score[:, 1:] - allowed[:, 1:]).all(1)
    can_be = same.any(-1).all(1) & distinct & among_best & in_order
    return torch.where(can_be[:, None], places, ranked)


def _taken(level: _Beam, places: Tensor) -> _Beam:
    """The paths of a level at int64 [n, B] ``places``."""
    n, width = level.node.shape
    rows = (torch.arange(n)[:, None] * width + places).flatten()
    deep = places[..., None].expand(-1, -1, level.tokens.shape[-1])
    return _Beam(
        level.tokens.gather(1, deep),
        level.node.gather(1, places),
        level.score.gather(1, places),
        level.allowed.gather(1, places),
        level.hidden[rows],
    )


def _chosen(levels: list[_Beam], guide: Guide, shape: TreeShape) -> Grown:
    """The T - 1 best of all that were scored."""
    pad = [
        torch.nn.functional.pad(level.tokens, (0, shape.num_steps - level.tokens.shape[-1]), value=-1)
        for level in levels
    ]
    paths = torch.cat(pad, dim=1)
    node, score, allowed = (
        torch.cat([getattr(level, name) for level in levels], dim=1) for name in ("node", "score", "allowed")
    )
    best = (score + allowed * (node >= 0)).topk(shape.tree_size - 1, dim=1).indices
    scores, rounding = (
        torch.full((len(node), shape.tree_size + 1), float("nan")).scatter_(
            1, torch.where(node >= 0, node, shape.tree_size), values
        )[:, :-1]
        for values in (score, allowed)
    )
    return Grown(
        node.gather(1, best), paths.gather(1, best[..., None].expand(-1, -1, shape.num_steps)), scores, rounding
    )

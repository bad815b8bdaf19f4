"""A head's drafts after many prefixes of one text, all of them at once.

Row r stands for a prefix of L tokens with target states, and the token behind them. The head's output at L - 1 is what
an engine stores for its next draft; the tree that grows from there is the one of ``tree.py``, with its K branches, S
levels and T nodes, but for one thing, in which it is as engines draft. The paths of a level lie in K branches, whose
keys and values stay where they were written: a path that goes on in another branch attends to what that branch wrote
before, and not to its own keys and values. (Hidden states do move with their path.) SGLang's draft loop is like that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdebug.reference.draft import (
    DraftHead,
    draft_inputs,
    draft_logits,
    finish_layer,
    project_heads,
    reduce_aux,
    to_target_ids,
)
from specdebug.reference.tree import TreeShape


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


class DraftedText:
    """A head that has read a text. ``zeroed``: int64, positions whose keys and values were set to zero."""

    def __init__(self, head: DraftHead, ids: Tensor, features: Tensor, zeroed: Tensor | None = None) -> None:
        """``ids`` int64 [n + 1], the last without a target state; ``features`` [n, ...] is what the head reads."""
        self._head = head
        self._ids = ids
        self._hidden = reduce_aux(head, features)
        x, _ = draft_inputs(head, ids[1:], self._hidden)
        _, k, v = project_heads(head, x, torch.arange(len(ids) - 1))
        if zeroed is not None:
            k[:, zeroed] = v[:, zeroed] = 0.0
        self._kv = k, v
        vocab = torch.arange(head.embed.shape[0])
        self._draft_id = vocab  # of each of the target's ids; -1 for those that the head cannot draft
        if head.is_eagle3:
            known = torch.arange(len(head.weights["d2t"]))
            self._draft_id = torch.full_like(vocab, -1).index_copy_(0, to_target_ids(head, known), known)

    @property
    def vocab_size(self) -> int:
        """Tokens that the head can read."""
        return self._head.embed.shape[0]

    def outputs(self, lengths: Tensor) -> Tensor:
        """The head's output [n, H] at the last position of each prefix of int64 [n] ``lengths``."""
        last = lengths - 1
        return self._pass(self._ids[lengths], self._hidden[last], last, self._before(last), *self._no_path(len(last)))[
            0
        ]

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits [n, Vd] over the head's vocabulary."""
        return draft_logits(self._head, outputs).float()

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's ids of the head's."""
        return to_target_ids(self._head, draft_ids)

    def grow(self, lengths: Tensor, outputs: Tensor, shape: TreeShape, guide: Guide) -> Grown:
        """Grow a tree behind each prefix, from the head's ``outputs`` there. Every choice that is narrow goes the way
        of the guide's tree: so these are the guide's trees if, and only if, rounding alone can make them."""
        n, topk = len(lengths), shape.topk
        visible = self._before(lengths)
        goes_on = torch.zeros_like(guide.tokens, dtype=torch.bool)
        goes_on.scatter_(1, guide.parents.clamp_min(0), guide.parents >= 0)
        none = torch.zeros(n, 1)
        start = _Beam(none[..., None][..., :0].long(), none.long(), none, none, outputs)
        level = self._children(start, outputs, guide, topk)
        levels = [level]
        beam = _taken(level, _in_branches(level, level.score.topk(level.score.shape[1], dim=1).indices, guide, 0))
        keys, values = self._no_path(n * beam.node.shape[1])
        for depth in range(1, shape.num_steps):
            width = beam.node.shape[1]
            hidden, keys, values = self._pass(
                beam.tokens[..., -1].flatten(),
                beam.hidden,
                (lengths - 1 + depth).repeat_interleave(width),
                visible.repeat_interleave(width, 0),
                keys,
                values,
            )
            level = self._children(beam, hidden, guide, topk)
            levels.append(level)
            in_tree = goes_on.gather(1, level.node.clamp_min(0)) & (level.node >= 0)
            best = (level.score + level.allowed * in_tree).topk(width, dim=1).indices
            beam = _taken(level, _in_branches(level, best, guide, depth))
        return _chosen(levels, guide, shape)

    def follow(self, lengths: Tensor, outputs: Tensor, tokens: Tensor, parents: Tensor) -> Tensor:
        """The head's logits [n, S - 1, K, Vd] along given branches, from its ``outputs`` behind each prefix.

        tokens: int64 [n, S - 1, K], what each branch reads at each forward. parents: int64, as many, the branch whose
        output of the forward before it reads beside that.
        """
        n, forwards, width = tokens.shape
        visible = self._before(lengths).repeat_interleave(width, 0)
        first_row = torch.arange(0, n * width, width)[:, None]
        hidden = outputs.repeat_interleave(width, 0)
        keys, values = self._no_path(n * width)
        logits = []
        for step in range(forwards):
            if step:
                hidden = hidden[(first_row + parents[:, step]).flatten()]
            positions = (lengths + step).repeat_interleave(width)
            hidden, keys, values = self._pass(tokens[:, step].flatten(), hidden, positions, visible, keys, values)
            logits.append(self.logits(hidden).view(n, width, -1))
        return torch.stack(logits, dim=1)

    def _before(self, positions: Tensor) -> Tensor:
        """The text's positions before each of these: bool [n, m]."""
        return torch.arange(self._kv[0].shape[-2]) < positions[:, None]

    def _no_path(self, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values of branches in which nothing is written."""
        k, v = (side.new_empty(len(side), rows, 0, side.shape[-1]) for side in self._kv)
        return k, v

    def _children(self, beam: _Beam, outputs: Tensor, guide: Guide, topk: int) -> _Beam:
        """The ``topk`` best continuations of every path, the paths' children one after another."""
        n, width, depth = beam.tokens.shape
        logits = self.logits(outputs).view(n, width, -1)
        logs = logits.log_softmax(-1)
        allowed = guide.margin * logits.abs().amax(-1)
        ours = (guide.parents[:, None] == beam.node[..., None]) & (beam.node >= 0)[..., None]  # [n, width, T]
        ids = self._draft_id[guide.tokens]
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

    def _pass(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, visible: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One pass over rows [R] of their own positions, each attending to what it sees of the text and, behind the
        text, to its branch: outputs [R, H], and the branch's keys and values with those of this position."""
        head = self._head
        x, residual = draft_inputs(head, tokens, hidden)
        q, k, v = project_heads(head, x, positions)
        text_keys, text_values = self._kv
        own_keys = torch.cat([keys, k[:, :, None]], dim=2)
        own_values = torch.cat([values, v[:, :, None]], dim=2)
        scores = (q @ text_keys.transpose(-1, -2)).masked_fill(~visible, float("-inf"))
        own = (q[:, :, None] * own_keys).sum(-1)
        m = scores.shape[-1]
        probs = (torch.cat([scores, own], dim=-1) * q.shape[-1] ** -0.5).softmax(-1)
        attended = probs[..., :m] @ text_values + (probs[..., m:, None] * own_values).sum(2)
        return finish_layer(head, attended, residual), own_keys, own_values


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

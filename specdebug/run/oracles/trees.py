"""A drafted tree, read from its ancestor mask alone; the trees of the last verifies, to be told with a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from specdebug.events import Decided


@dataclass(frozen=True)
class TreesByMask:
    """Trees [n, T] as their masks [n, T, T] say: each node's parent (of the root -1), depth, first child and next
    sibling (-1 for none), siblings in the order of nodes. ``valid``: bool [n], the mask is one of a tree whose parents
    come before their children."""

    parents: np.ndarray
    depths: np.ndarray
    first_child: np.ndarray
    next_sibling: np.ndarray
    valid: np.ndarray


def read_masks(masks: np.ndarray) -> TreesByMask:
    """Read bool [n, T, T], [i, j] where j is i or an ancestor of i."""
    nodes = masks.shape[1]
    itself = np.eye(nodes, dtype=bool)
    counts = masks.sum(-1)
    parents = np.where(masks & ~itself, counts[:, None, :], 0).argmax(-1)  # the deepest of the ancestors
    above = np.take_along_axis(masks, parents[..., None], axis=1)
    above[:, 0] = False
    earlier = parents < np.arange(nodes)
    earlier[:, 0] = True
    valid = (masks == (above | itself)).all((1, 2)) & earlier.all(1)
    parents[:, 0] = -1
    later = np.triu(np.ones((nodes, nodes), dtype=bool), 1)
    sibling = (parents[:, :, None] == parents[:, None, :]) & later
    child = (parents[:, None, :] == np.arange(nodes)[:, None]) & later
    return TreesByMask(parents, counts - 1, _first(child), _first(sibling), valid)


@dataclass(frozen=True)
class DecidedTrees:
    """The trees of a step's verify, and the nodes accepted of them: what ``Decided`` has of them."""

    step: int
    rids: Sequence[str]
    tokens: Tensor
    mask: Tensor
    accept_index: Tensor

    @classmethod
    def of(cls, step: int, decision: Decided) -> DecidedTrees:
        rids = [request.rid for request in decision.requests]
        return cls(step, rids, decision.tokens, decision.mask, decision.accept_index)

    def told(self, rid: str | None) -> dict[str, Any] | None:
        """A request's tree as plain data (of the first request, where none is named): ``tokens`` and ``parents`` of its
        nodes, and those ``accepted``, root first. None where it is in none, or its mask is no tree's."""
        if rid is not None and rid not in self.rids:
            return None
        row, nodes = 0 if rid is None else self.rids.index(rid), self.tokens.shape[1]
        tree = read_masks(self.mask[row : row + 1].cpu().numpy())
        if not tree.valid[0]:
            return None
        accepted = [index - row * nodes for index in self.accept_index[row].tolist() if index >= 0]
        told = {"tokens": self.tokens[row].tolist(), "parents": tree.parents[0].tolist()}
        return {"rid": self.rids[row], **told, "accepted": [node for node in accepted if node < nodes]}


def _first(found: np.ndarray) -> Any:
    return np.where(found.any(-1), found.argmax(-1), -1)

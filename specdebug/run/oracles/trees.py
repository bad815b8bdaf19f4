"""A drafted tree, read from its ancestor mask alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np


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


def _first(found: np.ndarray) -> Any:
    return np.where(found.any(-1), found.argmax(-1), -1)

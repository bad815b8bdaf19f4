"""Sums as hashes: modulo 2**64 over (value XOR key) times odd weight, key and weight by position.

One changed element always changes a sum, and a changed sum that of the sums. Without torch: a process that only reads
recordings needs none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from specdebug.diverge.owners import Segment

_STEPS = (-7046029254386353131, -4658895280553007687)
"""2**64 over the golden ratio, and another odd number whose bits are as mixed."""


class Layout:
    """Makes the hashes of segments of the sums of their calls. ``calls``: segments and number of sums of each."""

    def __init__(self, calls: Sequence[tuple[Sequence[Segment], int]]) -> None:
        index: list[int] = []
        place: list[int] = []
        starts: list[int] = []
        base = 0
        for segments, count in calls:
            for _, start, stop in segments:
                mine = range(min(start, count), min(stop, count))
                starts.append(len(index))
                index += [base + group for group in mine]
                place += range(len(mine))
            base += count
        self._index = np.array(index, dtype=np.int64)
        self._starts = np.array(starts, dtype=np.int64)
        self._empty = self._starts == np.array([*starts[1:], len(index)], dtype=np.int64)
        keys, weights = keys_and_weights(np.array(place, dtype=np.int64))
        self._keys, self._weights = keys.view(np.uint64), weights.view(np.uint64)

    def hashes(self, sums: np.ndarray) -> np.ndarray:
        """One for each segment, uint64. ``sums``: uint64, those of the calls in their order."""
        if not len(self._starts):
            return np.zeros(0, dtype=np.uint64)
        # One more than there are, so that an empty segment may begin at the end.
        terms = np.zeros(len(self._index) + 1, dtype=np.uint64)
        terms[:-1] = (sums[self._index] ^ self._keys) * self._weights
        found: np.ndarray = np.add.reduceat(terms, self._starts)
        found[self._empty] = 0  # which reduceat takes for the term it begins at
        return found


def row_sums(rows: np.ndarray) -> np.ndarray:
    """The sum of each row's bits, uint64 [n], as the kernel on a device adds them up."""
    bits = rows.view(f"i{rows.itemsize}").astype(np.int64).reshape(rows.shape[0], math.prod(rows.shape[1:]))
    keys, weights = keys_and_weights(np.arange(bits.shape[1], dtype=np.int64))
    found: np.ndarray = ((bits ^ keys) * weights).sum(1).view(np.uint64)
    return found


def keys_and_weights(place: Any) -> tuple[Any, Any]:
    """Key and odd weight of each place, int64, of numpy or of torch."""
    mixed = (place + 1) * _STEPS[0]
    mixed = (mixed ^ (mixed >> 29)) * _STEPS[1]
    return mixed ^ (mixed >> 32), (mixed ^ (mixed >> 27)) | 1

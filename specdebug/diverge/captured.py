"""Calls in a graph: recorded while it is captured, because every replay makes the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specdebug.async_probe import SiteCall
from specdebug.diverge.device_hashes import CapturedSums, Groups
from specdebug.diverge.fingerprint import rows_of
from specdebug.diverge.owners import LISTS

Described = tuple[str, Sequence[int], torch.dtype, Sequence[int] | None]
"""Of a call: the site, the shape with rows first (empty for a list), the dtype, and the shape of ``at``."""


class CapturedCall(NamedTuple):
    """A call in a graph. ``groups``: what the graph adds up of it. ``copy``: what it copies of it, rows first."""

    described: Described
    groups: Groups | None
    copy: Tensor | None


class Captured:
    """The calls in one graph, in program order.

    Args:
        groups: says of a call what is to be added up; None: nothing of any.
        copied: sites of which everything that passes is copied.
    """

    def __init__(
        self, groups: Callable[[SiteCall], Groups | None] | None = None, copied: frozenset[str] = frozenset()
    ) -> None:
        self.sums = CapturedSums()
        self.calls: list[CapturedCall] = []
        self._groups = groups
        self._copied = copied

    def add(self, call: SiteCall) -> None:
        """Make what is wanted of a call a part of the graph that is being captured."""
        groups = None if self._groups is None else self._groups(call)
        if groups is not None:
            self.sums.add(call, groups)
        copy = rows_of(call).clone() if call.site in self._copied else None
        self.calls.append(CapturedCall(described(call), groups, copy))


def described(call: SiteCall) -> Described:
    """Describe a call."""
    tensor, at = call.tensor, call.at
    shape: Sequence[int] = tensor.shape or (1,)
    if at is not None:
        shape = (at.numel(), tensor.shape[0], *tensor.shape[2:])
    elif call.site in LISTS:
        shape = ()
    return call.site, shape, tensor.dtype, None if at is None else at.shape
